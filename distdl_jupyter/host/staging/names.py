"""From the names of blobs to the files of a folder, none of which may lie outside of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from distdl_jupyter.host.staging.failure import Failure
from distdl_jupyter.host.staging.order import Item

_REMEDY = "Rename the blob, or choose another prefix."
#: Bytes that a name may have on the disks in use (NAME_MAX) and a whole path below the folder (of PATH_MAX, 4096).
_LONGEST, _DEEPEST = 255, 3000


@dataclass
class Layout:
    """Files by their path below the source's folder, and folders that must be there though nothing lies in them."""

    files: dict[str, Item] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def layout(prefix: str, items: Iterable[Item]) -> Layout:
    """Return where each blob goes. Raises Failure for a name that leads out, or two that meet in one place."""
    found = Layout()
    prefix = prefix.strip("/")
    for item in items:
        path = relative(prefix, item.name)
        if path.endswith("/") or not path:
            _marker(item, found, path)
        elif path in found.files:
            raise Failure(f"Two blobs would become the file {path!r}.", _REMEDY)
        else:
            found.files[path] = item
    _drop_markers(found)
    return found


def relative(prefix: str, name: str) -> str:
    """Return the path of a blob below its prefix (no slash around it), with a slash at its end for a folder.

    Raises Failure.
    """
    if name == prefix:
        path = name.rpartition("/")[2]
    elif not prefix:
        path = name
    elif name.startswith(f"{prefix}/"):
        path = name[len(prefix) + 1 :]
    else:
        raise Failure(f"The blob {name!r} does not lie below {prefix!r}.")
    parts = path.removesuffix("/").split("/") if path else []
    if any(not _fits(part) for part in parts) or len(path.encode("utf-8", "replace")) > _DEEPEST:
        raise Failure(f"The blob {name[:300]!r} cannot become a file of that name.", _REMEDY)
    return path


def _fits(part: str) -> bool:
    if part in ("", ".", "..") or "\0" in part:
        return False
    try:
        return len(part.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _marker(item: Item, found: Layout, path: str) -> None:
    if item.size:
        raise Failure(f"The blob {item.name!r} has the name of a folder, but it has content.", _REMEDY)
    if path:
        found.folders.append(path.removesuffix("/"))


def _drop_markers(found: Layout) -> None:
    """Leave out blobs below which others lie: empty ones mark a folder, others cannot be file and folder at once."""
    for folder in _parents([*found.files, *(f"{folder}/" for folder in found.folders)]):
        item = found.files.get(folder)
        if item is not None:
            if item.size:
                raise Failure(f"The blob {item.name!r} would be a file and a folder at once.", _REMEDY)
            del found.files[folder]


def _parents(paths: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in known:
            known.add(parent)
            parent = parent.rpartition("/")[0]
    return known

"""The order of one node as values, checked before anything is done with it: none of its names leads out of a folder."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from distdl_jupyter.node.staging.failure import Failure
from distdl_jupyter.stager import packages

#: Files and ranges that are fetched at once where the order does not say.
WORKERS = 8
KINDS = ("blob", "s3", "gs", "https")
_JOB = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_VERSION = re.compile(r"[!#-~]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_REMEDY = "Rename the object, or use another prefix."
#: Bytes that a name may have on the disks in use (NAME_MAX) and a whole path below the folder (of PATH_MAX, 4096).
_LONGEST, _DEEPEST = 255, 3000
#: Control characters, which obstore takes in no name.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Item(NamedTuple):
    """One object: its ``version`` (see ``stores``), ``md5`` of its content as 16 bytes, or b"" where none is known."""

    name: str
    size: int
    version: str
    md5: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a node: objects below ``prefix`` at ``address``, or a ``path`` that is there."""

    name: str
    variable: str
    kind: str
    address: str = ""
    prefix: str = ""
    items: list[Item] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    path: str = ""
    fingerprint: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What one node is to have."""

    job: str
    node: int
    sources: list[Source]
    base: str = ""
    limit: int | None = None
    workers: int = WORKERS
    ca: str = ""
    packages: packages.Wanted | None = None


def order(document: Any) -> Order:
    """Return the order that JSON data tells. Raises Failure for what cannot be followed."""
    try:
        limit = document.get("limit_bytes")
        return Order(
            job=job(document["job"]),
            node=int(document.get("node", 0)),
            sources=[_source(one) for one in document["sources"]],
            base=str(document.get("base") or ""),
            limit=None if limit is None else int(limit),
            workers=int(document.get("workers") or WORKERS),
            ca=str(document.get("ca") or ""),
            packages=packages.wanted(document["packages"]) if document.get("packages") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failure(f"The staging order is invalid ({type(error).__name__}: {error}).") from None


def job(document: Any) -> str:
    """Return the id of a job, which names a folder. Raises Failure when it could lead elsewhere."""
    if not _JOB.fullmatch(str(document)):
        raise Failure(f"{document!r} is not a valid job ID.")
    return str(document)


def _source(document: dict[str, Any]) -> Source:
    name = str(document["name"])
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} is not a valid name of a data source.")
    variable, kind = str(document["variable"]), str(document["kind"])
    if kind == "path":
        return Source(name, variable, kind, path=str(document["path"]), fingerprint=document.get("fingerprint"))
    if kind not in KINDS:
        raise Failure(f"{kind!r} is not a valid type of data source.", source=name)
    items = [Item(str(one[0]), int(one[1]), _version(str(one[2])), _md5(one[3])) for one in document["items"]]
    settings = {str(key): str(value) for key, value in (document.get("settings") or {}).items()}
    address = _address(str(document["address"]), kind, name)
    return Source(name, variable, kind, address, str(document["prefix"]), items, settings)


def _address(text: str, kind: str, source: str) -> str:
    split = urlsplit(text)
    scheme = "https" if kind == "blob" else kind
    if split.scheme != scheme or not split.hostname or split.query or split.fragment or "@" in split.netloc:
        raise Failure(f"{text.split('?', maxsplit=1)[0]!r} is not a valid {scheme} address of a store.", source=source)
    return text.rstrip("/")


def _version(text: str) -> str:
    found = text.replace('"', "")
    if not _VERSION.fullmatch(found):
        raise Failure(f"{text!r} is not a valid ETag.")
    return found


def _md5(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
    return found if len(found) == 16 else b""


# files ----------------------------------------------------------------------------------------------


@dataclass
class Layout:
    """Files by their path below the source's folder, and folders that must be there though nothing lies in them."""

    files: dict[str, Item] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def layout(prefix: str, items: Iterable[Item]) -> Layout:
    """Return where each object goes. Raises Failure for a name that leads out, or two that meet in one place."""
    found = Layout()
    prefix = prefix.strip("/")
    for item in items:
        path = relative(prefix, item.name)
        if path.endswith("/") or not path:
            _marker(item, found, path)
        elif path in found.files:
            raise Failure(f"Two objects map to the same file {path!r}.", _REMEDY)
        else:
            found.files[path] = item
    _drop_markers(found)
    return found


def relative(prefix: str, name: str) -> str:
    """Return the path of an object below its prefix (no slash around it), with a slash at its end for a folder.

    Raises Failure.
    """
    if name == prefix:
        path = name.rpartition("/")[2]
    elif not prefix:
        path = name
    elif name.startswith(f"{prefix}/"):
        path = name[len(prefix) + 1 :]
    else:
        raise Failure(f"The object {name!r} is not below the prefix {prefix!r}.")
    parts = path.removesuffix("/").split("/") if path else []
    if any(not _fits(part) for part in parts) or len(path.encode("utf-8", "replace")) > _DEEPEST:
        raise Failure(f"The object name {name[:300]!r} is not a valid file name.", _REMEDY)
    return path


def _fits(part: str) -> bool:
    if part in ("", ".", "..") or _CONTROL.search(part):
        return False
    try:
        return len(part.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _marker(item: Item, found: Layout, path: str) -> None:
    if item.size:
        raise Failure(f"The object {item.name!r} has the name of a folder but contains data.", _REMEDY)
    if path:
        found.folders.append(path.removesuffix("/"))


def _drop_markers(found: Layout) -> None:
    """Leave out objects below which others lie: empty ones mark a folder, others cannot be file and folder at once."""
    for folder in _parents([*found.files, *(f"{folder}/" for folder in found.folders)]):
        item = found.files.get(folder)
        if item is not None:
            if item.size:
                raise Failure(f"The object {item.name!r} would be both a file and a folder.", _REMEDY)
            del found.files[folder]


def _parents(paths: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in known:
            known.add(parent)
            parent = parent.rpartition("/")[0]
    return known

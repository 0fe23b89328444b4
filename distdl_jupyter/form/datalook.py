"""What lies at a place of data or outputs, looked at before the start: in a thread, once for a while, without haste.

A form asks after each click and is answered at once with what is known so far. Blob is listed and a signature tried
with the sign-in of this process, which the job's supervisor will have too; a folder's files are counted here.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from distdl_jupyter.core.caches import cache_directory
from distdl_jupyter.core.errors import DistDLError, NotSignedIn
from distdl_jupyter.core.humanize import plural, size

if TYPE_CHECKING:
    from distdl_jupyter.core.data import BlobPlace, DataSource

#: Seconds for which a look is good enough that found the place, that did not, and that found nobody signed in.
FRESH, REFUSED_FRESH, STRANGER_FRESH = 300.0, 30.0, 3.0
#: A folder is counted up to so many files, or so many seconds.
_MOST, _LONGEST = 200_000, 10.0
Level = Literal["ok", "info", "warning", "error"]


class Found(NamedTuple):
    """What a look came to. ``sign_in`` says that a sign-in to Azure is the remedy."""

    level: Level
    text: str
    remedy: str = ""
    code: str = ""
    sign_in: bool = False


@dataclass(slots=True)
class Look:
    """A look: ``found`` is None until it has ended for the first time."""

    found: Found | None = None
    looking: bool = True
    begun: float = field(default_factory=time.monotonic)
    seen: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_known: dict[Hashable, Look] = {}


def at(key: Hashable, ask: Callable[[], Found], *, look: bool = True, fresh: bool = False) -> Look | None:
    """Return what is known of ``key`` now, None for nothing.

    To ``look`` begins to ``ask`` where that is nothing or old, to look ``fresh`` in any case.
    """
    with _lock:
        known = _known.get(key)
        wanted = fresh or (look and (known is None or _is_old(known)))
        if wanted and (known is None or not known.looking):
            known = _known[key] = Look(found=known.found if known else None)
            threading.Thread(target=_answer, args=(known, ask), name="distdl-data-look", daemon=True).start()
    return known


def wait(looks: Iterable[Look], seconds: float) -> None:
    """Wait until something is known of all, but ``seconds`` at most."""
    end = time.monotonic() + seconds
    for look in looks:
        if look.found is None:
            look.seen.wait(max(0.0, end - time.monotonic()))


def _is_old(look: Look) -> bool:
    found = look.found
    refused = found is None or found.level == "error"
    good = STRANGER_FRESH if found and found.sign_in else REFUSED_FRESH if refused else FRESH
    return time.monotonic() - look.begun > good


def _answer(look: Look, ask: Callable[[], Found]) -> None:
    try:
        look.found = ask()
    except NotSignedIn as error:
        look.found = Found("error", error.message, error.hint, error.code, sign_in=True)
    except DistDLError as error:
        look.found = Found("error", error.message, error.hint, error.code)
    except ImportError as error:
        look.found = Found("error", f"A package is missing ({error.name}).",
                           "Install them: pip install azure-identity azure-storage-blob obstore.")  # fmt: skip
    except Exception as error:  # noqa: BLE001 - a thread that dies leaves the form waiting
        look.found = Found("error", f"It cannot be checked: {type(error).__name__}: {error}")
    finally:
        look.looking = False
        look.seen.set()


def folder(path: Path) -> Found:
    """Count the files at a path of this machine."""
    counted, bytes_, ended = 0, 0, time.monotonic() + _LONGEST
    try:
        for one in _files(path):
            counted, bytes_ = counted + 1, bytes_ + one
            if counted >= _MOST or time.monotonic() > ended:
                return Found("ok", f"More than {plural(counted, 'file')}, {size(bytes_)}")
    except OSError as error:
        where = error.filename or path
        return Found("error", f"{where} cannot be read: {error.strerror or error}.", "Fix its permissions.")
    if not counted:
        return Found(
            "warning", f"{path} contains no files.", "Add files before the job starts, or choose another path."
        )
    return Found("ok", _amount(counted, bytes_))


def _files(path: Path) -> Iterator[int]:
    """Yield the size of every file below a path, or of the file that it is. Raises OSError for the first unreadable."""
    known = path.stat()
    if not stat.S_ISDIR(known.st_mode):
        with path.open("rb"):
            yield known.st_size
        return
    for above, _, names in os.walk(path, onerror=_raise):
        for name in names:
            one = Path(above, name)
            if not one.exists():
                continue  # a link to nowhere
            if not os.access(one, os.R_OK):
                raise PermissionError(13, "no permission", str(one))
            yield one.stat().st_size


def _raise(error: OSError) -> None:
    raise error


def _amount(count: int, bytes_: float) -> str:
    return f"{plural(count, 'file')}, {size(bytes_)}"


def stored(source: DataSource, *, nodes: int, here: bool) -> Found:
    """List a source in a store, and try a signature of Blob.

    Its size is compared with this machine's disk when the nodes are ``here``.
    Raises DataUnavailable, NotSignedIn, ImportError.
    """
    from distdl_jupyter.storage import access, manifest

    warning = ""
    if source.scheme == "blob":
        account = access.account(source.account)
        warning = account.warning
        with closing(account.client):
            found = manifest.listed(account, source)
            access.signature(account, source, blob=found.single)
    else:
        found = manifest.found(source)
    parts = [sum(item.size for item in manifest.shard(found.items, node, nodes)) for node in range(nodes)]
    most = max(parts) if source.shard and nodes > 1 else found.bytes
    text = _amount(len(found.items), found.bytes)
    if most < found.bytes:
        text += f"; a node stores at most {size(most)}"
    lacking = _lacking(most if source.shard else found.bytes) if here else ""
    if lacking:
        return Found("warning", f"{text}. {lacking}", "Free space there, or set DISTDL_CACHE to a larger disk.")
    return Found("warning" if warning else "ok", text, warning)


def _lacking(wanted: int) -> str:
    """Return a sentence when the disk of the cache has less room than ``wanted`` bytes, what it holds not counted."""
    place = cache_directory()
    there = next((one for one in (place, *place.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    return f"The disk of {there} has {size(free)} free" if wanted > free else ""


def target(outputs: BlobPlace) -> Found:
    """Look whether the container for outputs is there. Raises DataUnavailable, NotSignedIn, ImportError."""
    from distdl_jupyter.storage import access
    from distdl_jupyter.storage.failures import translated

    account = access.account(outputs.account)
    where = f"blob://{outputs.account}/{outputs.container}"
    with translated(where, writing=True), closing(account.client):
        account.client.get_container_client(outputs.container).get_container_properties()
    text = "The container exists"
    return Found("warning", text, account.warning) if account.warning else Found("ok", text)

"""Sources that are folders every node sees: looked at, and used where they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from distdl_jupyter.host.staging.failure import Failure
from distdl_jupyter.host.staging.order import Source

#: Entries that a fingerprint looks at.
_MOST = 10_000


def fingerprint(path: str) -> dict[str, Any]:
    """Return what two machines that see the same folder, or file, both see: how many entries, a sum over their names.

    Only the first level counts, and names and sizes, no content. Raises OSError.
    """
    place = Path(path)
    if not place.is_dir():
        return {"entries": 1, "sum": _sum([f"{place.name}\0{place.stat().st_size}"])}
    with os.scandir(place) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    told = [f"{entry.name}\0{entry.stat().st_size if entry.is_file() else ''}" for entry in entries[:_MOST]]
    return {"entries": len(entries), "sum": _sum(told)}


def _sum(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def checked(source: Source) -> str:
    """Return the path of a source that this node sees. Raises Failure that says how it does not."""
    path = str(Path(source.path).expanduser())
    shared = "Name a path that every node sees, or put the data into Azure Blob."
    try:
        seen = fingerprint(path)
        readable = os.access(path, os.R_OK | (os.X_OK if Path(path).is_dir() else 0))
    except FileNotFoundError:
        raise Failure(f"{source.path} is not on this node.", shared, source.name) from None
    except OSError as error:
        raise Failure(f"{source.path} cannot be read on this node ({error.strerror}).", shared, source.name) from None
    if not readable:
        raise Failure(f"{source.path} may not be read on this node.", shared, source.name)
    if source.fingerprint is not None and source.fingerprint != seen:
        raise Failure(f"{source.path} has other files on this node ({seen['entries']}) than elsewhere "
                      f"({source.fingerprint.get('entries')}).", shared, source.name)  # fmt: skip
    return path

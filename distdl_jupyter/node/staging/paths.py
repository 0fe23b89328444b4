"""Sources that are folders every node sees: looked at, and used where they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from distdl_jupyter.node.staging.failure import Failure

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
    lines = [f"{entry.name}\0{entry.stat().st_size if entry.is_file() else ''}" for entry in entries[:_MOST]]
    return {"entries": len(entries), "sum": _sum(lines)}


def _sum(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def checked(name: str, path: str, expected: dict[str, Any] | None) -> str:
    """Return the path of a source that this node sees. Raises Failure that says how it does not."""
    place = str(Path(path).expanduser())
    shared = "Use a path that every node can read, or put the data into an object store."
    try:
        seen = fingerprint(place)
        readable = os.access(place, os.R_OK | (os.X_OK if Path(place).is_dir() else 0))
    except FileNotFoundError:
        raise Failure(f"{path} does not exist on this node.", shared, name) from None
    except OSError as error:
        raise Failure(f"{path} cannot be read on this node ({error.strerror}).", shared, name) from None
    if not readable:
        raise Failure(f"{path} is not readable on this node.", shared, name)
    if expected is not None and expected != seen:
        counts = f"{seen['entries']} here, {expected.get('entries')} there"
        raise Failure(f"{path} has different files on this node than on the other machines ({counts}).", shared, name)
    return place

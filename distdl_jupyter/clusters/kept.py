"""What was last found on a cluster's machines, kept on disk for some minutes: a form shows it at once.

It is kept beside the jobs, readable by this user alone, one file for each cluster and backend, whatever process asked.
Who wants to know how things are now asks the cluster itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.base import Check
from distdl_jupyter.core import store

#: Seconds for which findings are good enough; red ones are looked at again sooner, because somebody mends them.
GOOD_SECONDS, RED_SECONDS = 300.0, 60.0
_FORMAT = 1
#: Seconds after which a file is swept.
_OLD = 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Findings and when they were made (epoch seconds)."""

    checks: tuple[Check, ...]
    at: float


def key(kind: str, options: Mapping[str, Any], modules: Sequence[str] = (), programs: Sequence[str] = ()) -> str:
    """Return the name under which findings are kept: they hold for these options and needs only."""
    asked = json.dumps([kind, dict(options), sorted(modules), sorted(programs)], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def keep(name: str, checks: Sequence[Check]) -> None:
    """Keep findings. Without room on the disk they are not kept, which nobody has to know."""
    content = {"format": _FORMAT, "at": time.time(), "checks": [dataclasses.asdict(check) for check in checks]}
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(folder)
        _replace(folder / f"{name}.json", json.dumps(content))


def recent(name: str) -> Kept | None:
    """Return what was found a few minutes ago at most, None when that is too old or nothing."""
    try:
        content = json.loads((_folder() / f"{name}.json").read_text())
        found = Kept(tuple(Check(**one) for one in content["checks"]), float(content["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    red = any(check.level == "error" for check in found.checks)
    good = 0 <= time.time() - found.at < (RED_SECONDS if red else GOOD_SECONDS)
    return found if good and content.get("format") == _FORMAT else None


def _folder() -> Path:
    return store.home() / "cache" / "checks"


def _replace(path: Path, text: str) -> None:
    """Write a file of mode 0600 in one step, so that nobody reads half of it."""
    fd, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        Path(new).replace(path)
    except OSError:
        Path(new).unlink(missing_ok=True)
        raise


def _sweep(folder: Path) -> None:
    for path in _old(folder):
        path.unlink(missing_ok=True)


def _old(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD:
                yield path

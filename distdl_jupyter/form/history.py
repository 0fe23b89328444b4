"""Earlier jobs as the advice wants them, read from the job folders without folding their logs.

Only the newest folders are looked at, and of each log only the end: a form must open at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.preflight import PastJob

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.spec import JobSpec

_NEWEST = 100
_TAIL = 65_536
_ENDS = {state.value for state in State if state.ended}


def past_jobs(store: JobStore | None = None, newest: int = _NEWEST) -> list[PastJob]:
    """Return the newest jobs of this user, newest first."""
    folders = (store or JobStore()).folders()
    return [job for folder, _ in zip(folders, range(newest), strict=False) for job in _past(folder)]


def _past(folder: JobFolder) -> Iterator[PastJob]:
    try:
        spec = folder.spec()
    except JobNotFound:
        return
    end = _end(folder.events)
    yield PastJob(
        id=spec.id,
        name=spec.name,
        process_count=spec.process_count,
        code=spec.source.code,
        arguments=values_of(spec),
        completed=end.get("state") == State.COMPLETED.value,
        seconds=end["t"] - spec.created if "t" in end else None,
    )


def values_of(spec: JobSpec) -> tuple[str, ...]:
    """Return what tells two runs of the same code apart: captured values and command-line arguments."""
    values = sorted(f"{item.name}: {item.detail}" for item in spec.captured if item.kind not in ("function", "class"))
    return (*values, *spec.script_arguments)


def _end(path: Path) -> dict[str, Any]:
    """Return the state event that ended the job, {} while it lives or when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if b'"state"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("type") == "state" and event.get("state") in _ENDS:
            return event
    return {}

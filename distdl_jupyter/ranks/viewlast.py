"""Which cell ran last on persistent ranks, read from the end of their job's log."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: How much of the log's end is looked at, in bytes.
_END = 1_000_000


class LastCell(NamedTuple):
    """What people call it, and when it began (epoch seconds)."""

    label: str
    begun: float


def last_cell(events: Path) -> LastCell | None:
    """Return the last cell of which the log's end tells; None when it tells of none."""
    marks = (event for event in _from_end(events) if event.get("type") == "mark" and not event.get("ended"))
    return next((LastCell(str(mark.get("label") or "a cell"), float(mark["t"])) for mark in marks), None)


def _from_end(events: Path) -> Iterator[dict[str, Any]]:
    """Yield the marks at the log's end, the last first."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
            lines = file.read().split(b"\n")[1:-1]
    except FileNotFoundError:
        return
    for line in reversed(lines):
        if b'"type":"mark"' in line[:80]:
            yield json.loads(line)

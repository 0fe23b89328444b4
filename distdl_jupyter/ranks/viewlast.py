"""Which cell ran last on persistent ranks, read from the end of their job's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distdl_jupyter.core import logfile, parts

if TYPE_CHECKING:
    from pathlib import Path

#: How much of the log's end is looked at, in bytes.
_END = 1_000_000


class LastCell(NamedTuple):
    """What people call it, and when it began (epoch seconds)."""

    label: str
    begun: float


def last_cell(log: Path) -> LastCell | None:
    """Return the last cell of which the log's end tells; None when it tells of none."""
    end = parts.size(log)
    found, _ = logfile.between(log, logfile.line_start(log, max(0, end - _END)), end)
    marks = (line for line in reversed(found) if line["type"] == "mark" and not line.get("ended"))
    return next((LastCell(str(mark.get("label") or "a cell"), float(mark["t"])) for mark in marks), None)

"""One line of a job's log, as ``job.logs()`` yields it: unfolded, one line a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core import logfile, parts, pictures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from distdl_jupyter.core.events import Event

#: Bytes that are read at first to find the last lines.
_NEAR = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogLine:
    """``rank`` is None for the system's own lines; ``stream`` is out, err or sys; ``time`` in epoch seconds."""

    rank: int | None
    stream: str
    time: float
    text: str

    def __str__(self) -> str:
        return self.text


def lines_of(found: Iterable[Event], folder: Path | None = None) -> Iterator[LogLine]:
    """Yield the lines of log events in order; a redrawn line counts once, in its last shape.

    With the job's ``folder`` the line of a picture says where its file is.
    """
    for event in found:
        if event["type"] != "log" or (event.get("redraws") and not event.get("closed")):
            continue
        file = f" {folder / pictures.FOLDER / event['picture']}" if folder is not None and "picture" in event else ""
        for text in event["text"].split("\n"):
            yield LogLine(event.get("rank"), event.get("stream", "out"), event["t"], f"{text}{file}")


def last_lines(
    path: Path, many: int, rank: int | None = None, *, within: int | None = None
) -> tuple[list[LogLine], int]:
    """Return the last lines of a log, of one rank when given, and the cursor behind them.

    As much of the file's end is read as they take, but not much more than ``within`` bytes.
    """
    end = parts.size(path)
    size = _NEAR
    while True:
        begin = logfile.line_start(path, parts.back(path, end, size)) if end > size else 0
        found, cursor = logfile.between(path, begin, end)
        lines = [line for line in lines_of(found, path.parent) if rank is None or line.rank == rank]
        if begin == 0 or len(lines) >= many or (within is not None and size >= within):
            return lines[-many:] if many > 0 else [], cursor
        size *= 4

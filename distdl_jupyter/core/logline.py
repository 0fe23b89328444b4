"""One line of a job's log, as ``job.logs()`` yields it: unfolded, one line a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from distdl_jupyter.core.events import Event


@dataclass(frozen=True, slots=True)
class LogLine:
    """``rank`` is None for the system's own lines; ``stream`` is out, err or sys; ``time`` in epoch seconds."""

    rank: int | None
    stream: str
    time: float
    text: str

    def __str__(self) -> str:
        return self.text


def lines_of(events: Iterable[Event]) -> Iterator[LogLine]:
    """Yield the lines of log events in order; a redrawn line counts once, in its last shape."""
    for event in events:
        if event["type"] != "log" or (event.get("redraws") and not event.get("closed")):
            continue
        for text in event["text"].split("\n"):
            yield LogLine(event.get("rank"), event.get("stream", "out"), event["t"], text)

"""Reads the log of a job: the lines of its ranks and of the system (see core.events and core.parts).

``path`` is that of the log's first file (``JobFolder.log``). Cursors are byte offsets in the log. A reader
gets one notice in place of deleted lines, with their number. The total number of lines follows from the last ``count``
without reading the lines before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.core import events, parts, pictures
from distdl_jupyter.core.events import Event, decode
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.humanize import size as size_in_words
from distdl_jupyter.core.view import JobView

#: Bytes of text from one ``count`` to the next.
COUNT_EVERY = 128 * 1024
_READ_CHUNK = 8 * 1024 * 1024
#: Bytes that are searched for the beginning of a line at a time.
_LINE = 128 * 1024
#: Bytes that are read at first to find the last lines.
_NEAR = 256 * 1024


def read(path: Path, after: int = 0, limit: int = _READ_CHUNK) -> tuple[list[Event], int]:
    """Return the log lines from byte ``after`` on, and the cursor after the last of them.

    At most about ``limit`` bytes are read (always at least one whole line when there is one), so a caller loops
    until the cursor no longer moves. A missing file reads as empty.
    """
    try:
        begin, data = parts.lines(path, after, limit)
    except FileNotFoundError:
        return [], after
    if begin > after:
        return notice(path, begin), begin
    return _lines(data), after + len(data)


def _lines(data: bytes) -> list[Event]:
    return [line for line in decode(data) if line["type"] in events.LOG_TYPES]


def batches(path: Path, after: int = 0) -> Iterator[tuple[list[Event], int]]:
    """Yield (lines, cursor) in batches of some megabytes until the end of the log."""
    return events.batches(path, after, read)


def between(path: Path, begin: int, end: int) -> tuple[list[Event], int]:
    """Return the lines from one cursor to another, and the cursor after the last of them."""
    lines: list[Event] = []
    while begin < end:
        more, after = read(path, begin, end - begin)
        if after == begin or after > end:
            break
        lines += more
        begin = after
    return lines, begin


class Ending(NamedTuple):
    """The last lines of a log, the byte at which they begin, and the cursor behind the last of them."""

    lines: list[Event]
    begin: int
    cursor: int


def endings(path: Path, end: int, floor: int = 0, size: int = _NEAR) -> Iterator[Ending]:
    """Yield the lines before the byte ``end``: first about ``size`` bytes, then four times as many each time.

    Nothing before the byte ``floor`` is read; the last ones that are yielded begin there.
    """
    while True:
        begin = max(floor, parts.back(path, end, size))
        at = line_from(path, begin, end) if begin > floor else floor
        lines, cursor = between(path, at, end)
        yield Ending(lines, at, cursor)
        if begin == floor:
            return
        size *= 4


def count(path: Path, begin: int, view: JobView, end: int | None = None) -> int:
    """Add the number of lines from the byte ``begin`` on to a view; return the cursor after the last of them.

    Of a long log, only the lines after the last ``count`` are read.
    """
    for ending in endings(path, parts.size(path) if end is None else end, begin, 3 * COUNT_EVERY):
        counts = [number for number, line in enumerate(ending.lines) if line["type"] == "count"]
        if counts or ending.begin == begin:
            for line in ending.lines[counts[-1] if counts else 0 :]:
                view.apply(line)
            return ending.cursor
    return begin


def notice(path: Path, begin: int) -> list[Event]:
    """Return the notice that replaces the deleted lines before the byte ``begin``.

    It carries the ``counts`` of all lines before that byte, and ``lines``, their number.
    """
    missing = parts.gap(path)
    try:
        first = _lines(parts.lines(path, begin, 1)[1].partition(b"\n")[0])
    except FileNotFoundError:
        return []
    if missing is None or missing[1] != begin or not first or first[0]["type"] != "count":
        return []
    lines = plural(first[0]["lines"] - first[0]["first"], "line")
    size = size_in_words(missing[1] - missing[0])
    text = f"… {lines} ({size}) omitted; raise max_log_bytes to keep more"
    return [{**first[0], "type": "log", "rank": None, "stream": "sys", "text": text}]


def line_from(path: Path, begin: int, end: int) -> int:
    """Return the position of the first line that starts at a byte or later, at most ``end``."""
    at = begin - 1
    while 0 <= at < end:
        here, data = parts.read(path, at, _LINE)
        if here > at:  # deleted up to this byte
            return min(end, at + 1)
        if not data:
            break
        if b"\n" in data:
            return min(end, at + data.index(b"\n") + 1)
        at += len(data)
    return end if begin > 0 else 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """``rank`` is None for the system's own lines; ``stream`` is out, err or sys; ``time`` in epoch seconds."""

    rank: int | None
    stream: str
    time: float
    text: str

    def __str__(self) -> str:
        return self.text


def lines_of(events: Iterable[Event], folder: Path | None = None) -> Iterator[LogLine]:
    """Yield the lines of log events in order; a redrawn line counts once, in its last shape.

    With the job's ``folder``, the line of a picture contains the path of its file.
    """
    for event in events:
        if event["type"] != "log" or (event.get("redraws") and not event.get("closed")):
            continue
        file = f" {folder / pictures.FOLDER / event['picture']}" if folder is not None and "picture" in event else ""
        for text in event["text"].split("\n"):
            yield LogLine(event.get("rank"), event.get("stream", "out"), event["t"], f"{text}{file}")


def last_lines(
    path: Path, many: int, rank: int | None = None, *, within: int | None = None
) -> tuple[list[LogLine], int]:
    """Return the last lines of a log, of one rank when given, and the cursor behind them.

    Reads no more of the end of the file than needed, and not much more than ``within`` bytes.
    """
    end = parts.size(path)
    for ending in endings(path, end):
        lines = [line for line in lines_of(ending.lines, path.parent) if rank is None or line.rank == rank]
        if len(lines) >= many or (within is not None and end - ending.begin >= within):
            break
    return lines[-many:] if many > 0 else [], ending.cursor

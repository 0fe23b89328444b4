"""How many lines a stretch of an event log holds, told without parsing the lines themselves.

A reader that leaves the text of a long log unread still says how many lines there are. ``count(data, view)`` brings a
view to where folding the log events of ``data`` one by one would bring it; it knows how an ``EventWriter`` writes an
event, and parses those that look any other way.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from distdl_jupyter.core import events, parts

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.view import JobView

#: A log event of whole lines up to its text. What follows the text is looked at separately.
_HEAD = re.compile(rb'\{"v":\d+,"t":([\d.]+),"type":"log","rank":(null|\d+),"stream":"(\w+)","text":"')
_LOG = b'"type":"log"'
#: Bytes behind the text in which ``redraws`` stands where there is one.
_END = 80


def count(data: bytes, view: JobView) -> None:
    """Fold the log events among whole lines of a log into ``view`` by counting."""
    at, size = 0, len(data)
    tallies: dict[tuple[bytes, bytes], int] = {}
    last = b"0"
    while at < size:
        end = data.find(b"\n", at)
        end = size if end < 0 else end
        head = _HEAD.match(data, at, end)
        if head is None or not _plain(data, head.end(), end):
            _parse(data[at:end], view)
        else:
            whose = (head[2], head[3])
            tallies[whose] = tallies.get(whose, 0) + data.count(b"\\n", head.end(), end) + 1
            last = head[1]
        at = end + 1
    for (rank, stream), lines in tallies.items():
        _add(view, lines, -1 if rank == b"null" else int(rank), error=stream == b"err")
    view.last_sign = max(view.last_sign, float(last))


def _plain(data: bytes, begin: int, end: int) -> bool:
    """Say whether each backslash and n of a text is the end of a line, and the text is no redrawn one."""
    return data.find(b"\\\\", begin, end) < 0 and data.find(b'"redraws":', max(begin, end - _END), end) < 0


def count_file(path: Path, begin: int, end: int, view: JobView) -> None:
    """Fold the log events that stand between two cursors of a file into ``view`` by counting."""
    while begin < end:
        at, data = parts.read(path, begin, end - begin)
        if at > end or not data:
            return
        if at > begin:
            for event in events.notice(path, at):
                view.apply(event)
        count(data[: end - at], view)
        begin = at + len(data)


def _add(view: JobView, lines: int, rank: int, *, error: bool) -> None:
    view.lines += lines
    whose = view.rank(rank)
    if whose is not None:
        whose.lines += lines
        whose.error_lines += lines if error else 0


def _parse(line: bytes, view: JobView) -> None:
    if _LOG not in line:
        return
    try:
        event = json.loads(line)
    except ValueError:
        return
    if isinstance(event, dict) and event.get("type") == "log":
        view.apply(event)

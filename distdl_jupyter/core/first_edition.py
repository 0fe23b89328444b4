"""Jobs of the first edition, in whose one file ``events.jsonl`` events and lines of the log stand together.

It goes on in parts as a log does (core.parts). Of those that were left out ``parts/kept.jsonl`` holds all but the lines
of the log: "<byte behind it> <event>" a line. The log of such a job is read from the same file (core.logfile).
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from distdl_jupyter.core import parts
from distdl_jupyter.core.packing import Event, decode, unpack

if TYPE_CHECKING:
    from pathlib import Path

#: Types that are no events, and how the line of a log begins: told from all others without parsing it.
_OTHERS = ("log", "mark", "count", "part")
_LOG = re.compile(rb'\{"v":\d+,"t":[^,"]+,"type":"log",')


def is_one(events: Path, log: Path) -> bool:
    """Say whether a job was begun by the first edition: it has events but no file for its log."""
    return not log.exists() and events.exists()


def read(path: Path, after: int, limit: int) -> tuple[list[Event], int]:
    """Return the events that start at byte ``after`` and the cursor behind them, as ``core.events.read`` does."""
    try:
        at, data = parts.lines(path, after, limit)
    except FileNotFoundError:
        return [], after
    if at > after:
        return _kept(path, after, at, limit)
    found = decode(b"\n".join(line for line in data.split(b"\n") if not _LOG.match(line)))
    return [event for event in unpack(found) if event["type"] not in _OTHERS], after + len(data)


def _kept(path: Path, after: int, before: int, limit: int) -> tuple[list[Event], int]:
    """Return some of what is kept of the parts that were left out between two bytes, and behind which byte it ends."""
    found: list[bytes] = []
    with contextlib.suppress(FileNotFoundError), (path.with_name("parts") / "kept.jsonl").open("rb") as file:
        for line in file:
            number, _, text = line.partition(b" ")
            end = int(number) if number.isdigit() else 0
            if end > before:
                break
            if limit <= 0:
                return list(unpack(decode(b"".join(found)))), after
            if end > after:
                found.append(text)
                after, limit = end, limit - len(line)
    return list(unpack(decode(b"".join(found)))), before

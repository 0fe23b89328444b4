"""The event log: one append-only file of JSON lines per job, written by exactly one process.

Rules, each of them a test:

* One writer: whoever holds ``flock`` on the file ``lock``. The lock is the proof of life; no pid is ever guessed.
* Whole lines, one ``write`` each, ``O_APPEND``. A reader ignores the bytes after the last newline (a torn tail).
* The cursor is the byte offset after the last whole line: ``read(path, after) -> (events, cursor)``.
* Never rewritten, nothing deleted when a job ends. Unknown types and fields are ignored by readers.
* Strict JSON: a metric that is not finite is written as the string ``"nan"``, ``"inf"`` or ``"-inf"``.

Event types and their fields (all carry ``v``, ``t`` in seconds since the epoch, and ``type``):

=========  ==================================================================================================
state      ``state``, ``reason`` (a sentence, may be "")
phase      ``phase`` (one of core.state.PHASES), ``detail``; starting a phase ends the one before it
handle     ``cluster``, ``data``, ``nonce``: what attaching needs after a supervisor died
resume     a new supervisor was started because the one before had died
rank       ``rank``, ``status`` (started, ready, ended), and when known ``node``, ``host``, ``local_rank``, ``pid``,
           ``gpu``; at the end ``code`` (exit code) or ``signal`` (a name such as "KILL"), ``evidence``
log        ``rank`` (None: the system's own line), ``stream`` (out, err, sys), ``text``: whole lines, <= 64 kB; with
           ``redraws`` = n > 0 the text is one line that was redrawn n times with a carriage return and replaces the
           rank's open redrawn line of that stream; ``closed`` true ends that line
metric     ``rank``, ``step``, ``values`` {name: number}
progress   ``rank``, ``done``, ``total`` (None: unknown), ``unit`` (may be "")
note       ``level`` (info, warning, error), ``text``, ``code`` (a word for programs, may be "")
result     ``rank``, ``ok``, ``repr``, ``error`` (see worker.failure)
stop       ``signal`` ("" while nothing was sent), ``by`` (user, failure, time, end), ``next``, ``next_in``,
           ``kill_in`` (seconds), ``remaining`` (list of ranks)
=========  ==================================================================================================
What a rank's kept output brought (see ``clusters.base.Stream``) carries ``at``, the bytes of that output up to there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Event = dict[str, Any]
Part = Literal["all", "logs", "others"]
VERSION = 1
#: Longest text of one log event, in bytes before JSON escaping.
MAX_LOG_TEXT = 64 * 1024
_READ_CHUNK = 8 * 1024 * 1024


def encode(event: Event) -> bytes:
    """Return the event as one line of strict JSON (no newline inside, one at its end).

    Raises ValueError when a number that is not finite stands outside a metric's ``values``.
    """
    if event.get("type") == "metric":
        event = {**event, "values": {k: number_to_json(v) for k, v in event["values"].items()}}
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def number_to_json(value: float) -> float | str:
    """Return a finite number as it is, any other as ``"nan"``, ``"inf"`` or ``"-inf"``."""
    if not math.isfinite(value):
        return repr(value)
    return value


def number_from_json(value: float | str) -> float:
    """Return the number that ``number_to_json`` wrote."""
    return float(value)


class EventWriter:
    """Appends events to a job's log. The caller must hold the job's lock."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._heal()

    def _heal(self) -> None:
        """End a torn last line of a writer that died, so that the next line stands alone."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def write(self, type_: str, /, **fields: Any) -> Event:
        """Append one event stamped with the current time and return it. Raises OSError when the disk refuses."""
        event: Event = {"v": VERSION, "t": round(time.time(), 4), "type": type_, **fields}
        self.append(encode(event))
        return event

    def append(self, lines: bytes) -> None:
        """Append whole encoded lines with as few writes as the kernel needs (normally one)."""
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: Path, after: int = 0, limit: int = _READ_CHUNK, part: Part = "all") -> tuple[list[Event], int]:
    """Return the whole events that start at byte ``after`` and the cursor behind the last of them.

    At most about ``limit`` bytes are read (always at least one whole line when there is one), so a caller loops
    until the cursor stands still. A missing file reads as empty. A line that is not a JSON object is skipped.
    ``part`` leaves out the log events, or all others; what is left out is not parsed, so looking for the few other
    events of a job that printed 100 MB takes about 0.1 s.
    """
    try:
        with path.open("rb") as file:
            file.seek(after)
            data = file.read(limit)
            while data and b"\n" not in data:
                more = file.read(limit)
                if not more:
                    break
                data += more
    except FileNotFoundError:
        return [], after
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].splitlines()
    if part != "all":
        lines = [line for line in lines if _may_be(line, part)]
    found = [event for line in lines if (event := _decode(line)) is not None]
    return found if part == "all" else [e for e in found if (e["type"] == "log") is (part == "logs")], after + whole


#: How every line of an ``EventWriter`` begins.
_HEAD = re.compile(rb'\{"v":\d+,"t":[^,"]+,"type":"(\w+)"')


def _may_be(line: bytes, part: Part) -> bool:
    """Say whether a line has to be parsed to know what it is, or is of the part."""
    head = _HEAD.match(line)
    return head is None or (head[1] == b"log") is (part == "logs")


def _decode(line: bytes) -> Event | None:
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            return event
    return None


def batches(path: Path, after: int = 0) -> Iterator[tuple[list[Event], int]]:
    """Yield (events, cursor) in steps of some megabytes until nothing more stands in the file."""
    while True:
        events, cursor = read(path, after)
        if cursor == after:
            return
        yield events, cursor
        after = cursor


def read_all(path: Path, after: int = 0) -> tuple[list[Event], int]:
    """Read until nothing more stands in the file. For small logs and tests: a long log is better read in steps."""
    events: list[Event] = []
    for more, cursor in batches(path, after):
        events.extend(more)
        after = cursor
    return events, after


class JobLock:
    """The right to write a job's log, held as long as a descriptor of the open lock file lives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def acquire(cls, path: Path) -> JobLock | None:
        """Take the lock now or return None when another process holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return cls(fd)

    def release(self) -> None:
        """Give this process's descriptor back; the lock is free when no other process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

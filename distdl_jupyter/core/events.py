"""What a job's one writer appends: its events in ``events.jsonl``, the lines of its log in ``log.jsonl``.

Rules, each of them a test:

* One writer: whoever holds ``flock`` on the file ``lock``. The lock is the proof of life; no pid is ever guessed. The
  file names its holder's host, because a lock may be invisible to other hosts: none of them ever writes (core.locks).
* Whole lines, one or several a ``write``, ``O_APPEND``. A reader ignores bytes after the last newline (a torn tail).
* The cursor is the byte offset after the last whole line: ``read(path, after) -> (events, cursor)``.
* Never rewritten, nothing deleted when a job ends. Unknown types and fields are ignored by readers.
* The truth of a job is in its events alone; a job that prints a gigabyte has few of them. Only the log goes on in parts
  (core.parts) when it grows too long; core.logfile reads it.
* Between an event and a line of the log there is no order, but for one: the end of a job is written when all of its log
  is. Who has read the end and then reads the log has all of it.
* What a reader cannot do without (``_KEPT``) is on the disk before the writer goes on: a power cut takes the rest.
* Strict JSON in UTF-8 (core.packing).

Types of events and their fields (all carry ``v``, ``t`` in seconds since the epoch, and ``type``):

=========  ==================================================================================================
state      ``state``, ``reason`` (a sentence, may be "")
phase      ``phase`` (one of core.state.PHASES), ``detail``; starting a phase ends the one before it
queue      while it waits for its turn: the fields of core.queue.QueueView
handle     ``cluster``, ``data``, ``nonce``: what attaching needs after a supervisor died
resume     a new supervisor was started because the one before had died; ``lines`` of the log until then
rank       ``rank``, ``status`` (waiting, started, ready, ended), and when known ``node``, ``host``, ``local_rank``,
           ``pid``, ``gpu``, ``compiling`` (whether torch.compile is at work); at the end ``code`` (exit code) or
           ``signal`` (a name such as "KILL"), ``evidence``; a rank that is ``waiting`` again has no process now
metric     ``rank``, ``step``, ``values`` {name: number}; one that stands for several ``reports`` is the last of them,
           and has for each value, in their order, what a curve shows of all of them as ``folded`` (core.buckets:
           ``Series.folded``); with ``again`` it replaces what the rank reported of its step and of later ones
metrics    in the file only: several ``metric`` events of quick succession as one (core.packing)
metric_source  ``names`` of metrics, ``from_output``: from now on they are read in what ranks print; or, when that is
           false, ranks report them, which replaces what was read
progress   ``rank``, ``done`` (None: not known any more), ``total`` (None: unknown), ``unit`` (may be "")
note       ``level`` (info, warning, error), ``text``, ``code`` (a word for programs, may be "")
result     ``rank``, ``ok``, ``repr``, ``error`` (see worker.failure), ``problem`` (why the value did not come),
           ``collectives`` (worker.stacks.last_operations); a second one, of a rank that has ended, has what its log
           tells of its failure (supervisor.postmortem)
world      ``node_count``, ``process_count``: on how many the ranks that begin now run, when it is not as before
restart    ``reason``, ``rank`` (the one that failed first): all ranks begin anew;
           ``requeued`` when none had failed, but a queue had taken the machines away
stall      ``since`` (epoch seconds; None: it goes on again), ``ranks`` (those that differ), ``text``,
           ``collectives`` (the table of core.collectives)
stacks     ``number``, ``why`` (asked, stall, hang, time, failure), ``ranks``, ``missing``, ``collectives`` (the table
           of core.collectives), ``finding`` (its text, remedy and code); the stacks are a file (core.stacks)
profile    ``number``, ``status`` (asked, recording, saving, done, failed), ``steps``, ``ranks``, ``recorded`` (steps so
           far), ``why`` it failed; what was recorded is a file (core.profiles)
picture    ``rank``, ``number``, ``form`` (png, jpeg), ``width``, ``height``: a picture that the rank has shown, a file
           (core.pictures) that equal ones share; the line of the log that follows has its name as ``picture``
stop       ``signal`` ("" while nothing was sent), ``by`` (user, failure, time, hang, end), ``next``, ``next_in``,
           ``kill_in`` (seconds), ``remaining`` (list of ranks)
=========  ==================================================================================================

Types of lines of the log:

=========  ==================================================================================================
log        ``rank`` (None: the system's own line), ``stream`` (out, err, sys), ``text``: whole lines, <= 64 kB; with
           ``redraws`` = n > 0 the text is one line that was redrawn n times with a carriage return and replaces the
           rank's open redrawn line of that stream; ``closed`` true ends that line
mark       ``rank``, ``stream``, ``cell`` (a number), ``label``, ``ended``: in the output of a rank that stays, where a
           cell begins and ends (see worker.serving.server); it keeps its place among that stream's lines
position   ``rank``, ``stream``: a rank that prints nothing has reported much in its kept output
attempt    all ranks begin anew: there is a ``restart`` among the events for each
count      ``lines`` of the log before it and ``counts`` {rank: [lines, lines on stderr]}, now and then
           (logfile.COUNT_EVERY); the first line of a part is one, with the lines of the ``first`` file
=========  ==================================================================================================
What a rank's kept output brought (see ``clusters.base.Stream``) carries ``at``, the bytes of that output up to there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter.core import locks, parts
from distdl_jupyter.core.clock import Clock
from distdl_jupyter.core.packing import Event, decode, encode, pack, unpack
from distdl_jupyter.core.state import State

__all__ = [
    "LOG_TYPES", "MAX_LOG_TEXT", "VERSION", "Event", "EventWriter", "JobLock", "LineFile", "batches", "encode",
    "log_path", "number_from_json", "read", "read_all", "size",
]  # fmt: skip

VERSION = 1
#: Longest text of one log event, in bytes before JSON escaping.
MAX_LOG_TEXT = 64 * 1024
#: Types that stand in the log and not among the events.
LOG_TYPES = frozenset(("log", "mark", "position", "attempt", "count"))
_READ_CHUNK = 8 * 1024 * 1024
#: Without a result or its end a job would count as lost, and without its handle nobody would find its processes.
_KEPT = ("handle", "result")
_sync = getattr(os, "fdatasync", os.fsync)  # which macOS lacks
#: Seconds between two changes of the time of a log's first file.
_TOUCH_EVERY = 1.0
#: Last parts that are kept.
_PARTS = 2
#: Bytes at the end of a file in which its last moment is looked for.
_LAST_LINE = 4096


def number_from_json(value: float | str) -> float:
    """Return the number of a metric, which is a string where it is not finite (core.packing)."""
    return float(value)


def log_path(path: Path) -> Path:
    """Return the path of a job's log from the path of its events."""
    return path.with_name("log.jsonl")


class LineFile:
    """A file that one process appends whole lines to, and its parts."""

    def __init__(self, part: parts.Part) -> None:
        self._begin, self._path = part
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        length = os.fstat(self._fd).st_size
        #: Bytes up to behind the last line, those of earlier parts included.
        self.size = self._begin + length
        end = os.pread(self._fd, _LAST_LINE, max(0, length - _LAST_LINE)) if length else b""
        #: Bytes of the last call of ``append`` that stand in the file.
        self.taken = 0
        #: Whether the last line is that of a writer that died in it: the next one must not be glued to it.
        self._torn = not end.endswith(b"\n") if end else False
        #: The time of the last line, 0 when there is none.
        self.last_moment = _last_moment(end)

    def append(self, lines: bytes) -> None:
        """Append whole encoded lines with as few writes as the kernel needs (normally one).

        Raises OSError when the disk refuses; ``taken`` of their bytes stand in the file then, whole lines.
        """
        self.taken = 0
        if self._torn:
            self.size += os.write(self._fd, b"\n")
            self._torn = False
        begin, written = self.size, 0
        try:
            while written < len(lines):
                written += os.write(self._fd, memoryview(lines)[written:] if written else lines)
            self.taken = written
        except OSError:
            written = self._without_torn_line(begin, lines, written)
            raise
        finally:
            self.size = begin + written

    def _without_torn_line(self, begin: int, lines: bytes, written: int) -> int:
        """Take away what stands of a line that did not fit, which no reader has read; return how much is left."""
        self.taken = lines.rfind(b"\n", 0, written) + 1
        try:
            os.ftruncate(self._fd, begin + self.taken - self._begin)
        except OSError:
            self._torn = written > self.taken
            return written
        return self.taken

    def begin_part(self, path: Path, first_line: bytes) -> None:
        """Go on in another part of the log at ``path``. Raises OSError when the disk refuses it."""
        if self._torn:
            self.append(b"")
        fd = parts.create(path, self.size, first_line)
        os.close(self._fd)
        self._fd, self._begin, self.size = fd, self.size, self.size + len(first_line)

    @property
    def part_size(self) -> int:
        """Bytes of the file that is written now."""
        return self.size - self._begin

    def sync(self) -> None:
        """Return when all that was appended is on the disk."""
        _sync(self._fd)

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more: what is written is read by nobody."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class EventWriter:
    """Appends to the events at ``path`` and to the log beside them. The caller must hold the job's lock."""

    def __init__(self, path: Path) -> None:
        self._log_path = log_path(path)
        self.log = LineFile(parts.newest(self._log_path))
        self.events = LineFile(parts.Part(0, path))
        self._batch: list[Event] | None = None
        self._moment = 0.0
        self._touched = 0.0
        self._moments = Clock(max(self.events.last_moment, self.log.last_moment))

    def write(self, type_: str, /, **fields: Any) -> Event:
        """Append one event stamped with the current time and return it. Raises OSError when the disk refuses."""
        if self._batch is None:
            event: Event = {"v": VERSION, "t": self._moments.now(), "type": type_, **fields}
            self.put([event])
        else:
            event = {"v": VERSION, "t": self._moment, "type": type_, **fields}
            self._batch.append(event)
        return event

    @property
    def is_together(self) -> bool:
        """Whether what is written now is appended later (see ``together``)."""
        return self._batch is not None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Stamp what is written inside with one time and append it at the end, in its order, with one write a file.

        Metrics that follow each other take a fraction of the bytes then.
        """
        self._batch, self._moment = [], self._moments.now()
        try:
            yield
        finally:
            batch, self._batch = self._batch, None
            self.put(batch)

    def put(self, batch: list[Event]) -> None:
        """Append events, and then lines of the log: what the log has of a kept stream, the events have (History)."""
        self._put(self.events, [event for event in batch if event["type"] not in LOG_TYPES])
        self._put(self.log, [line for event in batch if (line := _log_line(event)) is not None])
        if any(map(_is_kept, batch)):
            self.events.sync()

    def _put(self, file: LineFile, batch: list[Event]) -> None:
        if batch:
            self.append_lines(file, b"".join(map(encode, pack(batch))))
            if file is self.log and file.part_size < file.size:
                self._touch()

    def append_lines(self, file: LineFile, lines: bytes) -> None:
        """Append whole encoded lines. Raises OSError when the disk refuses."""
        file.append(lines)

    def _touch(self) -> None:
        """Set the time of the log's first file, which says when the log was written last."""
        if time.monotonic() - self._touched > _TOUCH_EVERY:
            with contextlib.suppress(OSError):
                os.utime(self._log_path)
            self._touched = time.monotonic()

    def begin_part(self, **counts: Any) -> bool:
        """Let the log go on in another part with these fields of its first line; the last two parts are kept.

        Returns whether lines of the log are left out now. Raises OSError when the disk refuses the new part.
        """
        if self._batch:
            self.put(self._batch)
            self._batch = []
        moment = self._moments.now() if self._batch is None else self._moment
        self.log.begin_part(self._log_path, encode({"v": VERSION, "t": moment, "type": "count", **counts}))
        with contextlib.suppress(OSError):  # tried once more with the next part
            for part in parts.parts(self._log_path)[:-_PARTS]:
                part.file.unlink()
        return parts.gap(self._log_path) is not None

    @property
    def is_deleted(self) -> bool:
        """Whether the job's folder was deleted."""
        return self.events.is_deleted

    def close(self) -> None:
        """Close the files; calling it twice is harmless."""
        self.events.close()
        self.log.close()


def _log_line(event: Event) -> Event | None:
    """Return what the log has of an event."""
    if event["type"] == "restart":
        return {"v": VERSION, "t": event["t"], "type": "attempt"}
    return event if event["type"] in LOG_TYPES else None


def _is_kept(event: Event) -> bool:
    return event["type"] in _KEPT or (event["type"] == "state" and State(event["state"]).ended)


def _last_moment(end: bytes) -> float:
    """Return the time of the last line that begins in the end of a file, 0 when none does."""
    found = list(_BEGIN.finditer(end))
    return float(found[-1][1]) if found else 0.0


_BEGIN = re.compile(rb'^\{"v":\d+,"t":(\d+(?:\.\d+)?),', re.MULTILINE)


def read(path: Path, after: int = 0, limit: int = _READ_CHUNK) -> tuple[list[Event], int]:
    """Return the whole events that start at byte ``after`` and the cursor behind the last of them.

    At most about ``limit`` bytes are read (always at least one whole line when there is one), so a caller loops
    until the cursor stands still. A missing file reads as empty. A line that is not a JSON object is skipped.
    """
    try:
        with path.open("rb") as file:
            file.seek(after)
            data = file.read(limit)
            if data and b"\n" not in data:
                data += file.readline()
    except FileNotFoundError:
        return [], after
    data = data[: data.rfind(b"\n") + 1]
    return list(unpack(decode(data))), after + len(data)


def size(path: Path) -> int:
    """Return how many bytes the events have, 0 when there are none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def batches(
    path: Path, after: int = 0, reader: Callable[[Path, int], tuple[list[Event], int]] = read
) -> Iterator[tuple[list[Event], int]]:
    """Yield (events, cursor) in steps of some megabytes until nothing more stands in the file."""
    while True:
        found, cursor = reader(path, after)
        if cursor == after:
            return
        yield found, cursor
        after = cursor


def read_all(path: Path, after: int = 0) -> tuple[list[Event], int]:
    """Read until nothing more stands in the file."""
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
    def acquire(cls, path: Path, *, of_other_host: bool = False) -> JobLock | None:
        """Take the lock now and sign it, or return None when another process holds it. Raises OSError.

        One that a process of another host has signed is left to it, unless that is known to be gone.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        if not of_other_host and locks.holder(path).host:
            os.close(fd)
            return None
        locks.sign(path)
        return cls(fd)

    def release(self) -> None:
        """Give this process's descriptor back; the lock is free when no other process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

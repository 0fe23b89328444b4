"""The event log: one append-only file of JSON lines per job, written by exactly one process.

Rules, each of them a test:

* One writer: whoever holds ``flock`` on the file ``lock``. The lock is the proof of life; no pid is ever guessed. The
  file names its holder's host, because a lock may be invisible to other hosts: none of them ever writes (core.locks).
* Whole lines, one or several a ``write``, ``O_APPEND``. A reader ignores bytes after the last newline (a torn tail).
* The cursor is the byte offset after the last whole line: ``read(path, after) -> (events, cursor)``.
* Never rewritten, nothing deleted when a job ends. Unknown types and fields are ignored by readers.
* A log that grows too long goes on in parts (core.parts), of which the last are kept. Of those that were left out all
  events stay but the log lines, in the place of which ``read`` gives one that says how many they were.
* What a reader cannot do without (``_KEPT``) is on the disk before the writer goes on: a power cut takes the rest.
* Strict JSON in UTF-8: a metric that is not finite is written as the string ``"nan"``, ``"inf"`` or ``"-inf"``.
* Log lines can be told from all others by their first bytes, without parsing: they may be nearly all of a gigabyte.

Event types and their fields (all carry ``v``, ``t`` in seconds since the epoch, and ``type``):

=========  ==================================================================================================
state      ``state``, ``reason`` (a sentence, may be "")
phase      ``phase`` (one of core.state.PHASES), ``detail``; starting a phase ends the one before it
handle     ``cluster``, ``data``, ``nonce``: what attaching needs after a supervisor died
resume     a new supervisor was started because the one before had died
rank       ``rank``, ``status`` (waiting, started, ready, ended), and when known ``node``, ``host``, ``local_rank``,
           ``pid``, ``gpu``; at the end ``code`` (exit code) or ``signal`` (a name such as "KILL"), ``evidence``; a rank
           that is ``waiting`` again has no process now
log        ``rank`` (None: the system's own line), ``stream`` (out, err, sys), ``text``: whole lines, <= 64 kB; with
           ``redraws`` = n > 0 the text is one line that was redrawn n times with a carriage return and replaces the
           rank's open redrawn line of that stream; ``closed`` true ends that line
metric     ``rank``, ``step``, ``values`` {name: number}; one that stands for several ``reports`` is the last of them,
           and has for each value, in their order, what a curve shows of all of them as ``folded`` (core.buckets:
           ``Series.folded``)
metrics    in the file only: several ``metric`` events of quick succession as one (see core.packing)
progress   ``rank``, ``done``, ``total`` (None: unknown), ``unit`` (may be "")
note       ``level`` (info, warning, error), ``text``, ``code`` (a word for programs, may be "")
mark       ``rank``, ``stream``, ``cell`` (a number), ``label``, ``ended``: in the output of a rank that stays, where a
           cell begins and ends (see worker.serving.marks); it keeps its place among that stream's log events
result     ``rank``, ``ok``, ``repr``, ``error`` (see worker.failure), ``problem`` (why the value did not come); a
           second one, of a rank that has ended, has what its log tells of its failure (supervisor.postmortem)
world      ``node_count``, ``process_count``: on how many the ranks that begin now run, when it is not as before
restart    ``reason``, ``rank`` (the one that failed first): all ranks begin anew, with ``ranks`` only these
stall      ``since`` (epoch seconds; None: it goes on again), ``ranks`` (those that differ), ``text``
stacks     ``number``, ``why`` (asked, stall, hang, time), ``ranks``, ``missing``; their text is a file (core.stacks)
picture    ``rank``, ``number``, ``form`` (png, jpeg), ``width``, ``height``: a picture that the rank has shown, a file
           (core.pictures) that equal ones share; the line of the log that follows has its name as ``picture``
part       in the file only, the first line of a part: ``lines`` of the log before it, of them ``first`` in the first
           file, and ``counts`` {rank: [lines, lines on stderr]}
stop       ``signal`` ("" while nothing was sent), ``by`` (user, failure, time, hang, end), ``next``, ``next_in``,
           ``kill_in`` (seconds), ``remaining`` (list of ranks)
=========  ==================================================================================================
What a rank's kept output brought (see ``clusters.base.Stream``) carries ``at``, the bytes of that output up to there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from distdl_jupyter.core import locks, parts
from distdl_jupyter.core.moments import Moments
from distdl_jupyter.core.packing import number_to_json, pack, unpack
from distdl_jupyter.core.state import State
from distdl_jupyter.core.words import plural
from distdl_jupyter.core.words import size as size_in_words

Event = dict[str, Any]
Part = Literal["all", "logs", "others"]
VERSION = 1
#: Longest text of one log event, in bytes before JSON escaping.
MAX_LOG_TEXT = 64 * 1024
_READ_CHUNK = 8 * 1024 * 1024
#: Behind every log.
_FAR = 2**62
#: Without a result or its end a job would count as lost, and without its handle nobody would find its processes.
_KEPT = ("handle", "result")
_sync = getattr(os, "fdatasync", os.fsync)  # which macOS lacks
#: Seconds between two changes of the first file's time.
_TOUCH_EVERY = 1.0
#: Last parts that are kept.
_PARTS = 2
#: Bytes at the end of a log in which its last moment is looked for.
_LAST_LINE = 4096

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(event: Event) -> bytes:
    """Return the event as one line of strict JSON (no newline inside, one at its end).

    Raises ValueError when a number that is not finite stands outside a metric's ``values``.
    """
    if event.get("type") == "metric":
        event = {**event, "values": {k: number_to_json(v) for k, v in event["values"].items()}}
    try:
        return _dumps(event).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair is no character, but Python's strings can hold it
        return _dumps_ascii(event).encode() + b"\n"


def number_from_json(value: float | str) -> float:
    """Return the number that ``number_to_json`` wrote."""
    return float(value)


class EventWriter:
    """Appends events to a job's log. The caller must hold the job's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin, file = parts.newest(path)
        self._fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._batch: list[Event] | None = None
        self._moment = 0.0
        length = os.fstat(self._fd).st_size
        #: Bytes of the log up to behind the last event.
        self.size = self._begin + length
        end = os.pread(self._fd, _LAST_LINE, max(0, length - _LAST_LINE)) if length else b""
        #: Bytes of the last call of ``append`` that stand in the file.
        self.taken = 0
        self._touched = 0.0
        #: Whether the last line is that of a writer that died in it: the next one must not be glued to it.
        self._torn = not end.endswith(b"\n") if end else False
        self._moments = Moments(_last_moment(end))

    def write(self, type_: str, /, **fields: Any) -> Event:
        """Append one event stamped with the current time and return it. Raises OSError when the disk refuses."""
        if self._batch is None:
            event: Event = {"v": VERSION, "t": self._moments.now(), "type": type_, **fields}
            self.append(encode(event))
            if _is_kept(event):
                _sync(self._fd)
        else:
            event = {"v": VERSION, "t": self._moment, "type": type_, **fields}
            self._batch.append(event)
        return event

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Stamp what is written inside with one time and append it at the end, in its order, with one write.

        Metrics that follow each other take a fraction of the bytes then.
        """
        self._batch, self._moment = [], self._moments.now()
        try:
            yield
        finally:
            batch, self._batch = self._batch, None
            self._append_batch(batch)

    def _append_batch(self, batch: list[Event]) -> None:
        self.append(b"".join(map(encode, pack(batch))))
        if any(map(_is_kept, batch)):
            _sync(self._fd)

    def begin_part(self, **counts: Any) -> bool:
        """Go on in another part with these fields of its first line, and keep of the parts the last two.

        Returns whether lines of the log are left out now. Raises OSError when the disk refuses the new part.
        """
        if self._batch:
            self._append_batch(self._batch)
            self._batch = []
        if self._torn:
            self.append(b"")
        moment = self._moments.now() if self._batch is None else self._moment
        line = encode({"v": VERSION, "t": moment, "type": "part", **counts})
        fd = parts.create(self._path, self.size, line)
        os.close(self._fd)
        self._fd, self._begin, self.size = fd, self.size, self.size + len(line)
        with contextlib.suppress(OSError):  # tried once more with the next part
            for part in parts.parts(self._path)[:-_PARTS]:
                _leave_out(self._path, part)
        return parts.gap(self._path) is not None

    def append(self, lines: bytes) -> None:
        """Append whole encoded lines with as few writes as the kernel needs (normally one).

        Raises OSError when the disk refuses; ``taken`` of their bytes stand in the file then, whole lines.
        """
        self.taken = 0
        if self._begin and time.monotonic() - self._touched > _TOUCH_EVERY:
            # The time of the first file says when the log was written last.
            os.utime(self._path)
            self._touched = time.monotonic()
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

    @property
    def part_size(self) -> int:
        """Bytes of the file that is written now."""
        return self.size - self._begin

    def _without_torn_line(self, begin: int, lines: bytes, written: int) -> int:
        """Take away what stands of a line that did not fit, which no reader has read; return how much is left."""
        self.taken = lines.rfind(b"\n", 0, written) + 1
        try:
            os.ftruncate(self._fd, begin + self.taken - self._begin)
        except OSError:
            self._torn = written > self.taken
            return written
        return self.taken

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more: what is written is read by nobody."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_kept(event: Event) -> bool:
    return event["type"] in _KEPT or (event["type"] == "state" and State(event["state"]).ended)


def _last_moment(end: bytes) -> float:
    """Return the time of the last line that begins in the end of a log, 0 when none does."""
    found = list(_BEGIN.finditer(end))
    return float(found[-1][1]) if found else 0.0


_BEGIN = re.compile(rb'^\{"v":\d+,"t":(\d+(?:\.\d+)?),', re.MULTILINE)


def read(
    path: Path, after: int = 0, limit: int = _READ_CHUNK, part: Part = "all", *, before: int = _FAR
) -> tuple[list[Event], int]:
    """Return the whole events that start at byte ``after`` and the cursor behind the last of them.

    At most about ``limit`` bytes are read (always at least one whole line when there is one), so a caller loops
    until the cursor stands still. Of what was left out ``limit`` counts what is kept, up to the byte ``before``. A
    missing file reads as empty. A line that is not a JSON object is skipped.
    ``part`` leaves out the log events, or all others. Log events that are left out are not parsed, so looking for the
    few other events of a job that printed 100 MB takes about 0.1 s.
    """
    try:
        begin, data = parts.read(path, after, limit)
        if begin > after:
            return _left_out(path, after, begin, limit, part, before)
        while data and b"\n" not in data:
            _, more = parts.read(path, after + len(data), limit)
            if not more:
                break
            data += more
    except FileNotFoundError:
        return [], after
    whole = data.rfind(b"\n") + 1
    lines = _without_logs(data, whole) if part == "others" else data[:whole].splitlines()
    found = [event for line in lines if (event := _decode(line)) is not None]
    if part != "all":
        found = [event for event in found if (event["type"] == "log") is (part == "logs")]
    return list(unpack(found)), after + whole


#: The beginning of a line that is no log event of an ``EventWriter``, behind the end of the line before.
_NO_LOG = re.compile(rb'\n(?!\{"v":\d+,"t":[^,"]+,"type":"log",)')
_LOG = re.compile(_NO_LOG.pattern[len(rb"\n(?!") : -1])


def _without_logs(data: bytes, whole: int) -> Iterator[bytes]:
    """Yield the whole lines that have to be parsed to know what they are, or are no log events."""
    for begin, end in _places_without_logs(data, whole):
        yield data[begin:end]


def _places_without_logs(data: bytes, whole: int) -> Iterator[tuple[int, int]]:
    """Yield where those lines begin and end.

    One search over all of the bytes: a gigabyte takes about a second, where looking at each of its lines takes five.
    """
    if whole and not _LOG.match(data):
        yield 0, data.index(b"\n")
    for found in _NO_LOG.finditer(data, 0, whole - 1):
        begin = found.start() + 1
        yield begin, data.index(b"\n", begin)


def _leave_out(path: Path, part: parts.Part) -> None:
    """Delete a part, the first there is, and keep what is no log line of it."""
    with parts.open_kept(path) as out, part.file.open("rb") as file:
        begin = part.begin
        out.seek(max(0, out.seek(0, os.SEEK_END) - 1))
        if out.read() not in (b"", b"\n"):
            out.write(b"\n")  # a writer died in a line; what it wrote of this part is skipped when it comes once more
        while data := file.read(_READ_CHUNK):
            data += file.readline()
            for start, end in _places_without_logs(data, data.rfind(b"\n") + 1):
                if b'"type":"part"' not in data[start : start + 60]:
                    out.write(b"%d %b\n" % (begin + end + 1, data[start:end]))
            begin += len(data)
    part.file.unlink()


def _left_out(path: Path, after: int, begin: int, limit: int, part: Part, before: int) -> tuple[list[Event], int]:
    """Return some of the events between two bytes that are kept of what was left out, in the end what says so."""
    end = min(begin, before)
    found, at = ([], end) if part == "logs" else _kept_after(path, after, end, limit)
    if found and at < end:
        return list(unpack(found)), at
    return [*unpack(found), *([] if part == "others" or end < begin else notice(path, begin))], end


def _kept_after(path: Path, after: int, before: int, limit: int) -> tuple[list[Event], int]:
    """Return what is kept behind the byte ``after`` of the log up to ``before``, and behind which byte that ends."""
    found: list[Event] = []
    with contextlib.suppress(FileNotFoundError), parts.kept(path).open("rb") as file:
        for line in file:
            number, _, text = line.partition(b" ")
            end = int(number) if number.isdigit() else 0
            if end > before or limit <= 0:
                break
            if end > after and (event := _decode(text)) is not None:
                found.append(event)
                after, limit = end, limit - len(line)
    return found, after


def notice(path: Path, begin: int) -> list[Event]:
    """Return the line of the log that stands for those that were left out before the byte ``begin``.

    It carries the ``counts`` of all lines before that byte, and ``lines``, their number.
    """
    missing = parts.gap(path)
    try:
        first = parts.read(path, begin, MAX_LOG_TEXT)[1].partition(b"\n")[0]
    except FileNotFoundError:
        return []
    event = _decode(first)
    if missing is None or missing[1] != begin or event is None or event["type"] != "part":
        return []
    lines = plural(event["lines"] - event["first"], "line")
    size = size_in_words(missing[1] - missing[0])
    text = f"… {lines} ({size}) left out here; raise max_log_bytes to keep more"
    return [{**event, "type": "log", "rank": None, "stream": "sys", "text": text}]


def line_start(path: Path, near: int) -> int:
    """Return where the line begins that holds byte ``near`` of the log: the cursor to read the end of a long one from.

    The number of bytes before it may be anything, so folding on from there gives what stands behind it and no counts.
    """
    part = parts.part_at(path, max(0, near - 1))
    while near > part.begin:
        begin = max(part.begin, near - MAX_LOG_TEXT)
        if (at := parts.read(path, begin, near - begin)[1].rfind(b"\n")) >= 0:
            return begin + at + 1
        near = begin
    return near


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


def logs_between(path: Path, begin: int, end: int) -> tuple[list[Event], int]:
    """Return the log events from one cursor to another, and the cursor behind the last of them."""
    found: list[Event] = []
    while begin < end:
        more, after = read(path, begin, end - begin, "logs")
        if after == begin or after > end:
            break
        found += more
        begin = after
    return found, begin


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

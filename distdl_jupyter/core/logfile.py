"""The log of a job in its files: one process writes them, any process can read them (see core.events for the lines).

    log.jsonl              the first bytes of the log, for most jobs all of them
    parts/<begin>.jsonl    the last parts of a long log, each named after its first byte in the log

``path`` is the path of the log's first file (``JobFolder.log``). Cursors are byte offsets that never change, so they
stay valid when the writer deletes earlier parts. A line never spans two files. A reader continues after a deleted part,
with one notice in place of the deleted lines. The last ``count`` contains the number of all lines before it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.core import events
from distdl_jupyter.core.events import LOG_TYPES, VERSION, Clock, Event, State, decode, encode
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.humanize import size as size_in_words
from distdl_jupyter.core.view import JobView

#: Bytes of text between two ``count`` lines.
COUNT_INTERVAL_BYTES = 128 * 1024
#: Bytes that are read at a time: of a log, to find the beginning of a line, at the end of a file to find its last time.
_READ_CHUNK, _LINE_CHUNK, _END_CHUNK = 8 * 1024 * 1024, 128 * 1024, 4096
_LINE_START = re.compile(rb'^\{"v":\d+,"t":(\d+(?:\.\d+)?),', re.MULTILINE)
_sync = getattr(os, "fdatasync", os.fsync)  # not on macOS
#: Synced types: a job without its result or end counts as lost; without its handle, its processes cannot be found.
_SYNCED = ("handle", "result")
#: Number of parts that are not deleted.
_MAX_PARTS = 2


def read(path: Path, after: int = 0, limit: int = _READ_CHUNK) -> tuple[list[Event], int]:
    """Return the log lines from byte ``after`` onwards, and the cursor after the last of them.

    Read about ``limit`` bytes, at least one line; call it until the cursor no longer changes. Deleted lines are
    replaced by a notice with the ``counts`` of all lines up to its end.
    """
    begin, data = read_bytes(path, after, limit)
    if begin <= after:
        return [line for line in decode(data) if line["type"] in LOG_TYPES], after + len(data)
    deleted, first_line = find_deleted_range(path), data[: data.find(b"\n") + 1]
    if deleted[1] != begin or not (counts := decode(first_line)) or counts[0]["type"] != "count":
        return [], begin
    lines = plural(counts[0]["lines"] - counts[0]["first"], "line")
    text = f"… {lines} ({size_in_words(begin - deleted[0])}) omitted; raise max_log_bytes to keep more"
    return [{**counts[0], "type": "log", "rank": None, "stream": "sys", "text": text}], begin


def read_range(path: Path, begin: int, end: int) -> tuple[list[Event], int]:
    """Return the lines from one cursor to another, and the cursor after the last of them."""
    lines: list[Event] = []
    while begin < end:
        chunk, cursor = read(path, begin, end - begin)
        if not begin < cursor <= end:
            break
        lines += chunk
        begin = cursor
    return lines, begin


def _read_backward(path: Path, end: int, floor: int = 0) -> Iterator[tuple[list[Event], int, int]]:
    """Yield the lines before the byte ``end``, the byte at which they begin, and the cursor after them.

    Each item has about four times as many bytes as the one before; the last one begins at ``floor``.
    """
    size = 2 * COUNT_INTERVAL_BYTES  # usually contains a ``count``
    while True:
        begin, deleted = end - size, find_deleted_range(path)
        if begin < deleted[1] and end > deleted[0]:  # the deleted bytes do not count
            begin = deleted[0] - size + max(0, end - deleted[1])
        position = find_line(path, begin, end) if begin > floor else floor
        lines, cursor = read_range(path, position, end)
        yield lines, position, cursor
        if begin <= floor:
            return
        size *= 4


def count_lines(path: Path, begin: int, view: JobView, end: int | None = None) -> int:
    """Add the number of lines from the byte ``begin`` onwards to a view; return the cursor after the last of them."""
    end = get_size(path) if end is None else end
    for lines, position, cursor in _read_backward(path, end, begin):
        counts = [index for index, line in enumerate(lines) if line["type"] == "count"]
        if counts or position == begin:
            for line in lines[counts[-1] if counts else 0 :]:
                view.apply(line)
            return cursor
    return begin


def find_line(path: Path, begin: int, end: int) -> int:
    """Return the position of the first line that starts at the byte ``begin`` or later, at most ``end``."""
    if begin <= 0:
        return 0
    position, data = read_bytes(path, begin - 1, _LINE_CHUNK)
    if position >= begin:  # deleted up to this byte
        return min(end, begin)
    return min(end, begin + data.index(b"\n")) if data else end


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line. ``stream`` is out, err or sys, ``time`` in epoch seconds. ``rank`` is None for lines of the system."""

    rank: int | None
    stream: str
    time: float
    text: str

    def __str__(self) -> str:
        return self.text


def split_lines(events: Iterable[Event], folder: Path | None = None) -> Iterator[LogLine]:
    """Yield the lines of log events in order; a redrawn line is yielded once, in its final form.

    With the job's ``folder``, the line of a picture contains the path of its file.
    """
    for event in events:
        if event["type"] != "log" or (event.get("redraws") and not event.get("closed")):
            continue
        file = f" {folder / 'pictures' / event['picture']}" if folder is not None and "picture" in event else ""
        for text in event["text"].split("\n"):
            yield LogLine(event.get("rank"), event.get("stream", "out"), event["t"], f"{text}{file}")


def read_last_lines(
    path: Path, limit: int, rank: int | None = None, *, within: int | None = None
) -> tuple[list[LogLine], int]:
    """Return the last ``limit`` lines of a log or rank in its last ``within`` bytes, and the cursor after them."""
    end, result = get_size(path), (list[LogLine](), 0)
    for log_events, begin, cursor in _read_backward(path, end):
        lines = [line for line in split_lines(log_events, path.parent) if rank is None or line.rank == rank]
        result = lines[-limit:] if limit > 0 else [], cursor
        if len(lines) >= limit or (within is not None and end - begin >= within):
            break
    return result


def list_parts(path: Path) -> list[tuple[int, Path]]:
    """Return the parts after the first file in order, each with the offset of its first byte; [] for most logs."""
    files = path.with_name("parts").glob("*.jsonl")
    return sorted((int(file.stem), file) for file in files if file.stem.isdecimal())


def get_size(path: Path) -> int:
    """Return the size of the log including deleted parts, or 0 if there is no log."""
    begin, file = (list_parts(path) or [(0, path)])[-1]
    return begin + events.get_size(file)


def find_deleted_range(path: Path) -> tuple[int, int]:
    """Return the first and the end byte of the deleted range of the log, or (0, 0) if the log is complete."""
    files = list_parts(path)
    begin = path.stat().st_size if files else 0
    return (begin, files[0][0]) if files and begin < files[0][0] else (0, 0)


def read_bytes(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    """Return the position of about ``limit`` bytes of complete lines of one file, and these bytes (b"" at the end).

    They start at the byte ``begin``, or after the deleted range if that contains it.
    """
    while True:
        part_begin, file = 0, path
        if begin >= events.get_size(path) and (files := list_parts(path)):
            part_begin, file = next((part for part in reversed(files) if part[0] <= begin), files[0])
        position = max(begin, part_begin)
        data = events.read_lines(file, position - part_begin, limit)
        if data or file == path or file.exists():
            return position, data
        # The part was deleted in the meantime.


class LineFile:
    """A file to which one process appends complete lines; ``begin`` is the offset of its first byte in a log."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.begin = begin
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        length = os.fstat(self.fd).st_size
        #: Position after the last line, including earlier parts, and bytes that the last call of ``append`` wrote.
        self.size, self.bytes_written = begin + length, 0
        end = os.pread(self.fd, _END_CHUNK, max(0, length - _END_CHUNK)) if length else b""
        #: Whether the last line is incomplete because its writer died, so that a newline must precede the next one.
        self._is_torn = bool(end) and not end.endswith(b"\n")
        #: The time of the last line (epoch seconds), or 0 if there is none.
        self.last_time = max((float(match[1]) for match in _LINE_START.finditer(end)), default=0.0)

    def append(self, lines: bytes) -> None:
        """Append complete encoded lines. Raises OSError after writing ``bytes_written`` bytes of complete lines."""
        self.bytes_written = written = 0
        if self._is_torn:
            self.size += os.write(self.fd, b"\n")
            self._is_torn = False
        begin = self.size
        try:
            while written < len(lines):
                written += os.write(self.fd, memoryview(lines)[written:] if written else lines)
            self.bytes_written = written
        except OSError:
            self.bytes_written = lines.rfind(b"\n", 0, written) + 1
            try:  # remove the incomplete line, which no reader has read
                os.ftruncate(self.fd, begin + self.bytes_written - self.begin)
                written = self.bytes_written
            except OSError:
                self._is_torn = written > self.bytes_written
            raise
        finally:
            self.size = begin + written

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class EventWriter:
    """Appends to the events at ``path`` and to the log next to them. The caller must hold the job's lock."""

    def __init__(self, path: Path) -> None:
        self._log_path = path.with_name("log.jsonl")
        begin, file = (list_parts(self._log_path) or [(0, self._log_path)])[-1]
        self.log, self.events = LineFile(file, begin), LineFile(path)
        self._clock = Clock(max(self.events.last_time, self.log.last_time))
        #: The events inside ``batch_events`` (None outside) and their time (0 outside).
        self._batch: list[Event] | None = None
        self._batch_time = 0.0

    def write(self, type_: str, /, **fields: Any) -> Event:
        """Append one event stamped with the current time and return it. Raises OSError."""
        event: Event = {"v": VERSION, "t": self._batch_time or self._clock.now(), "type": type_, **fields}
        if self._batch is None:
            self.put([event])
        else:
            self._batch.append(event)
        return event

    @contextlib.contextmanager
    def batch_events(self) -> Iterator[None]:
        """Collect the events written inside; append them with one timestamp and one write per file."""
        if self._batch is not None:
            yield
            return
        self._batch_time, self._batch = self._clock.now(), []
        try:
            yield
        finally:
            batch, self._batch, self._batch_time = self._batch, None, 0.0
            self.put(batch)

    def put(self, batch: list[Event]) -> None:
        """Append events and then log lines, so that events never lag behind the log of a stored stream (History)."""
        records: list[Event] = []
        lines: list[Event] = []
        for event in batch:
            (lines if event["type"] in LOG_TYPES else records).append(event)
            if event["type"] == "restart":
                lines.append({"v": VERSION, "t": event["t"], "type": "attempt"})
        if records:
            self.append_lines(self.events, b"".join(map(encode, records)))
        if lines:
            self.append_lines(self.log, b"".join(map(encode, lines)))
        if any(e["type"] in _SYNCED or (e["type"] == "state" and State(e["state"]).ended) for e in records):
            _sync(self.events.fd)

    def append_lines(self, file: LineFile, lines: bytes) -> None:
        """Append complete encoded lines. Raises OSError."""
        file.append(lines)

    def begin_part(self, **counts: Any) -> bool:
        """Continue the log in a new part whose first line has these counts; return whether older parts were deleted.

        Raises OSError if the new part cannot be created.
        """
        if self._batch:
            self.put(self._batch)
            self._batch = []
        self.log.append(b"")  # completes a torn line
        folder = self._log_path.with_name("parts")
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary = folder / f"{self.log.size}.new"
        temporary.unlink(missing_ok=True)
        part = LineFile(temporary, self.log.size)
        try:
            time = self._batch_time or self._clock.now()
            part.append(encode({"v": VERSION, "t": time, "type": "count", **counts}))
            temporary.rename(temporary.with_suffix(".jsonl"))
        except OSError:
            part.close()
            temporary.unlink(missing_ok=True)
            raise
        self.log.close()
        self.log = part
        with contextlib.suppress(OSError):  # retried with the next part
            for _, file in list_parts(self._log_path)[:-_MAX_PARTS]:
                file.unlink()
        return find_deleted_range(self._log_path) != (0, 0)

    def close(self) -> None:
        """Close the files; calling it twice is harmless."""
        self.events.close()
        self.log.close()

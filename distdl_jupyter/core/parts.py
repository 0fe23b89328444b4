"""The files of a job's log: one file, followed by parts if the log is long.

    log.jsonl              the first bytes of the log, for most jobs all of them
    parts/<begin>.jsonl    the last parts, each named after its first byte in the log

Offsets in the log never change, so a cursor stays valid when earlier parts are deleted. A line never spans two files.
Only the writer of the log creates and deletes parts; a reader that is too late for a part continues after it.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

#: Bytes at the end of a file that are searched for the time of its last line.
_LAST_LINE = 4096
_sync = getattr(os, "fdatasync", os.fsync)  # not on macOS


class LogPart(NamedTuple):
    """One file of the log and the offset of its first byte."""

    begin: int
    file: Path


def parts(path: Path) -> list[LogPart]:
    """Return the parts after the first file in order, [] for most logs."""
    folder = path.with_name("parts")
    try:
        files = [file for file in folder.iterdir() if file.suffix == ".jsonl" and file.stem.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(LogPart(int(file.stem), file) for file in files)


def create(path: Path, begin: int, first_line: bytes) -> int:
    """Create the part that begins at a byte, with its first line, and return a descriptor for appending."""
    folder = path.with_name("parts")
    folder.mkdir(mode=0o700, exist_ok=True)
    new = folder / f"{begin}.new"
    fd = os.open(new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(first_line):
            written += os.write(fd, first_line[written:])
        new.rename(folder / f"{begin}.jsonl")
    except OSError:
        os.close(fd)
        new.unlink(missing_ok=True)
        raise
    return fd


def size(path: Path) -> int:
    """Return the size of the log including deleted parts, 0 if there is none."""
    last = newest(path)
    try:
        return last.begin + last.file.stat().st_size
    except FileNotFoundError:
        return 0


def newest(path: Path) -> LogPart:
    """Return the file that is currently written."""
    return (parts(path) or [LogPart(0, path)])[-1]


def gap(path: Path) -> tuple[int, int] | None:
    """Return begin and end of the deleted range of the log, None if it is complete."""
    files = parts(path)
    if not files:
        return None
    begin = path.stat().st_size
    return (begin, files[0].begin) if begin < files[0].begin else None


def part_at(path: Path, byte: int) -> LogPart:
    """Return the file that contains or will contain a byte, or the next file if the byte was deleted."""
    try:
        first = path.stat().st_size
    except FileNotFoundError:
        return LogPart(0, path)
    if byte < first or not (files := parts(path)):
        return LogPart(0, path)
    return next((part for part in reversed(files) if part.begin <= byte), files[0])


def lines(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    """Return about ``limit`` bytes of complete lines from byte ``begin`` on, at least one line if there is one.

    The first number is where they begin: after ``begin`` if that was deleted. Raises FileNotFoundError if there is
    no log.
    """
    at, data = read(path, begin, limit)
    while data and b"\n" not in data:
        _, more = read(path, at + len(data), limit)
        if not more:
            break
        data += more
    return at, data[: data.rfind(b"\n") + 1]


def read(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    """Return bytes from ``begin`` up to a gap, and where they begin: after the gap if ``begin`` is in one.

    Raises FileNotFoundError if there is no log.
    """
    at, data = _read(path, begin, limit)
    while 0 < len(data) < limit:
        behind, more = _read(path, at + len(data), limit - len(data))
        if not more or behind > at + len(data):
            break
        data += more
    return at, data


def _read(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    while True:
        part = part_at(path, begin)
        at = max(begin, part.begin)
        try:
            with part.file.open("rb") as file:
                file.seek(at - part.begin)
                return at, file.read(limit)
        except FileNotFoundError:
            if part.file == path:
                raise
            # It was deleted in the meantime.


def back(path: Path, end: int, many: int) -> int:
    """Return the position ``many`` existing bytes before ``end``, at least 0."""
    files = [LogPart(0, path), *parts(path)]
    lengths = [later.begin - part.begin for part, later in pairwise(files)] + [end - files[-1].begin]
    if len(files) > 1:
        lengths[0] = path.stat().st_size
    for part, length in zip(reversed(files), reversed(lengths), strict=True):
        here = min(end - part.begin, length)
        if here >= many:
            return part.begin + here - many
        many -= max(0, here)
    return 0


class LineFile:
    """A file that one process appends whole lines to, and its parts."""

    def __init__(self, part: LogPart) -> None:
        self._begin, self._path = part
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        length = os.fstat(self._fd).st_size
        #: Position after the last line, including earlier parts.
        self.size = self._begin + length
        end = os.pread(self._fd, _LAST_LINE, max(0, length - _LAST_LINE)) if length else b""
        #: Bytes that the last call of ``append`` has written.
        self.taken = 0
        #: Whether a writer died within the last line, so that a newline must precede the next one.
        self._torn = not end.endswith(b"\n") if end else False
        #: The time of the last line, 0 when there is none.
        self.last_moment = _last_moment(end)

    def append(self, lines: bytes) -> None:
        """Append complete encoded lines with as few writes as possible (normally one).

        Raises OSError; ``taken`` bytes, which are complete lines, were then written.
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
        """Truncate an incomplete line, which no reader has read; return the bytes that remain."""
        self.taken = lines.rfind(b"\n", 0, written) + 1
        try:
            os.ftruncate(self._fd, begin + self.taken - self._begin)
        except OSError:
            self._torn = written > self.taken
            return written
        return self.taken

    def begin_part(self, path: Path, first_line: bytes) -> None:
        """Continue in a new part of the log at ``path``. Raises OSError."""
        if self._torn:
            self.append(b"")
        fd = create(path, self.size, first_line)
        os.close(self._fd)
        self._fd, self._begin, self.size = fd, self.size, self.size + len(first_line)

    @property
    def part_size(self) -> int:
        """Size in bytes of the file that is currently written."""
        return self.size - self._begin

    def sync(self) -> None:
        """Sync the appended lines to the disk."""
        _sync(self._fd)

    @property
    def is_deleted(self) -> bool:
        """Whether the file was unlinked, so that nothing written can be read."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _last_moment(end: bytes) -> float:
    """Return the time of the last line that begins in the end of a file, 0 when none does."""
    stamps = list(_BEGIN.finditer(end))
    return float(stamps[-1][1]) if stamps else 0.0


_BEGIN = re.compile(rb'^\{"v":\d+,"t":(\d+(?:\.\d+)?),', re.MULTILINE)

"""Where the bytes of a job's log stand: in one file, and when the log is long in parts behind it.

    log.jsonl              the log's first bytes, for most jobs all of them
    parts/<begin>.jsonl    the last parts, each named for the byte of the log with which it begins

A byte of the log keeps its number for ever, so a cursor stays true whatever is left out before it. No line is cut in
two by a file's end. Only the log's one writer makes and deletes parts; a reader that comes too late for one goes on
behind it.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Part(NamedTuple):
    """One file of the log and the byte of the log with which it begins."""

    begin: int
    file: Path


def parts(path: Path) -> list[Part]:
    """Return the parts behind the first file in their order, [] for most logs."""
    folder = path.with_name("parts")
    try:
        files = [file for file in folder.iterdir() if file.suffix == ".jsonl" and file.stem.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(Part(int(file.stem), file) for file in files)


def create(path: Path, begin: int, first_line: bytes) -> int:
    """Create the part that begins at a byte, with its first line in it, and return a descriptor to append to it."""
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
    """Return how many bytes the log has, those included that were left out; 0 when there is none."""
    last = newest(path)
    try:
        return last.begin + last.file.stat().st_size
    except FileNotFoundError:
        return 0


def newest(path: Path) -> Part:
    """Return the file that is written now."""
    return (parts(path) or [Part(0, path)])[-1]


def gap(path: Path) -> tuple[int, int] | None:
    """Return from where to where the log was left out, None where it is whole."""
    found = parts(path)
    if not found:
        return None
    begin = path.stat().st_size
    return (begin, found[0].begin) if begin < found[0].begin else None


def part_at(path: Path, byte: int) -> Part:
    """Return the file in which a byte stands or will stand; the first one behind it where the byte was left out."""
    try:
        first = path.stat().st_size
    except FileNotFoundError:
        return Part(0, path)
    if byte < first or not (found := parts(path)):
        return Part(0, path)
    return next((part for part in reversed(found) if part.begin <= byte), found[0])


def lines(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    """Return the whole lines of about ``limit`` bytes from the byte ``begin`` on, at least one when there is one.

    The first number is where they begin: behind ``begin`` where that was left out. Raises FileNotFoundError where
    there is no log.
    """
    at, data = read(path, begin, limit)
    while data and b"\n" not in data:
        _, more = read(path, at + len(data), limit)
        if not more:
            break
        data += more
    return at, data[: data.rfind(b"\n") + 1]


def read(path: Path, begin: int, limit: int) -> tuple[int, bytes]:
    """Return bytes from the byte ``begin`` of the log on up to a gap, and where they begin: behind a gap, if in one.

    Raises FileNotFoundError where there is no log.
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
            # It was left out just now.


def back(path: Path, end: int, many: int) -> int:
    """Return the byte that has ``many`` bytes between itself and ``end`` that were not left out, 0 at least."""
    found = [Part(0, path), *parts(path)]
    lengths = [later.begin - part.begin for part, later in pairwise(found)] + [end - found[-1].begin]
    if len(found) > 1:
        lengths[0] = path.stat().st_size
    for part, length in zip(reversed(found), reversed(lengths), strict=True):
        here = min(end - part.begin, length)
        if here >= many:
            return part.begin + here - many
        many -= max(0, here)
    return 0

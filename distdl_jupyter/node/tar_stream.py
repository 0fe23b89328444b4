"""Tar streams between the wire and the files of a job: each runs in a thread of its own, so that nothing else waits."""

from __future__ import annotations

import queue
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distdl_jupyter.node import files, frames

#: Pieces of an incoming stream that may wait for the disk.
_WAITING = 256


class Incoming:
    """A tar that arrives in pieces. ``give`` and ``behind`` are for the loop, ``unpack`` for the thread."""

    def __init__(self, folder: Path, wake: Callable[[], object]) -> None:
        self._folder = folder
        self._wake = wake
        self._pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self._over = False
        self._failed = False

    def give(self, piece: bytes) -> None:
        """Take the next piece; b"" is the end."""
        if not self._failed:
            self._pieces.put(piece)

    @property
    def behind(self) -> bool:
        """Whether so much waits for the disk that no more should be read."""
        return not self._failed and self._pieces.qsize() > _WAITING

    def unpack(self) -> dict[str, Any]:
        """Write the files as they come and return how many. Raises OSError, and Refused for a bad archive."""
        try:
            moved = files.unpack(self._folder, self)
            while not self._over:  # a tar may be padded behind its end
                self._next()
        except tarfile.TarError as error:
            raise files.Refused(f"The received data is not a valid tar archive: {error}.") from None
        finally:
            self._failed = True
            self._wake()
        return {"files": moved.files, "bytes": moved.bytes}

    def read(self, size: int, /) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end."""
        found = [self._rest]
        length = len(self._rest)
        while length < size and not self._over:
            found.append(self._next())
            length += len(found[-1])
        content = b"".join(found)
        self._rest = content[size:]
        return content[:size]

    def _next(self) -> bytes:
        piece = self._pieces.get()
        self._over = not piece
        if self._pieces.qsize() == _WAITING // 2:
            self._wake()
        return piece


def send_files(folder: Path, paths: Iterable[str], channel: int, post: Callable[[bytes], object]) -> dict[str, Any]:
    """Send files as data of ``channel`` through ``post``, which waits while too much is under way."""
    try:
        moved = files.pack(folder, paths, lambda content: post(frames.data(channel, content)) if content else None)
    finally:
        post(frames.data(channel, b""))
    return {"files": moved.files, "bytes": moved.bytes, "skipped": list(moved.skipped)}

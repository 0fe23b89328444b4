"""A file of the cache in the making: ranges come in any order, from several threads, over several attempts.

A lock on it says that somebody works on it. Beside a file of several ranges lies a list of those that are written, each
with its MD5, so that a later attempt can tell what is good of what an earlier one, or a crash, has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.node.processes import boot
from distdl_jupyter.node.staging.cache import BOOT, PART, RANGE, RANGES, stamp


class Part:
    """``path`` is where the file will be. It is made by ``begin``."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._list = -1
        self._lock = threading.Lock()
        self._written: set[int] = set()

    @property
    def count(self) -> int:
        """How many ranges it has."""
        return -(-self.size // RANGE)

    @property
    def several(self) -> bool:
        """Whether it has more than one range."""
        return self.size > RANGE

    def length(self, index: int) -> int:
        """Return the bytes of a range."""
        return min(RANGE, self.size - index * RANGE)

    # attempts -----------------------------------------------------------------------------------

    def listed(self) -> dict[int, bytes]:
        """Return the ranges that an earlier attempt wrote, with the MD5 of each."""
        if not self.several:
            return {}
        found: dict[int, bytes] = {}
        self._list = os.open(self.path + RANGES, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(self._list, "rb", closefd=False) as file:
            for line in file.read().splitlines():
                with contextlib.suppress(ValueError):  # the end may be torn, and lines tell of the machine, too
                    index, digest = line.split()
                    found[int(index)] = bytes.fromhex(digest.decode())
        return {index: digest for index, digest in found.items() if 0 <= index < self.count and len(digest) == 16}

    def holds(self, index: int, digest: bytes, buffer: memoryview) -> bool:
        """Return whether a range that is listed is on the disk as it was; it is read into ``buffer``."""
        view = buffer[: self.length(index)]
        if os.preadv(self._fd, [view], index * RANGE) != len(view):
            return False
        return hashlib.md5(view, usedforsecurity=False).digest() == digest

    # writing ------------------------------------------------------------------------------------

    def write(self, index: int, content: memoryview) -> bool:
        """Write a range; return whether it was the last one that lacked. Raises OSError."""
        at, left = index * RANGE, content
        while left:
            written = os.pwrite(self._fd, left, at)
            at, left = at + written, left[written:]
        if self._list >= 0:
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            os.write(self._list, f"{index} {digest}\n".encode())
        return self.accept(index)

    def accept(self, index: int) -> bool:
        """Take a range that is on the disk; return whether it was the last one that lacked."""
        with self._lock:
            self._written.add(index)
            return len(self._written) == self.count

    def md5(self) -> bytes:
        """Return the MD5 of all that was written."""
        found = hashlib.md5(usedforsecurity=False)
        for index in range(self.count):
            found.update(os.pread(self._fd, self.length(index), index * RANGE))
        return found.digest()

    def begin_anew(self) -> None:
        """Take none of the ranges as written."""
        with self._lock:
            self._written.clear()
        if self._list >= 0:
            os.ftruncate(self._list, 0)

    def publish(self, link: Callable[[str, str], None]) -> None:
        """Put the whole file into its place; ``link`` is called first, so that it is in use from its first moment."""
        if self.several:
            self._stand_crashes()
        os.fchmod(self._fd, 0o400)
        os.utime(self._fd, (time.time(), stamp(self.path)))
        link(self.path + PART, self.path)
        Path(self.path + PART).rename(self.path)
        self.close()

    def _stand_crashes(self) -> None:
        """See to it that a crash of the machine is found out: the length proves only what was written at once.

        To wait for the disk would take as long as all the rest, so the list stays and tells in which run of the machine
        the file was written; in another one its ranges are looked at again.
        """
        if boot():
            os.write(self._list, f"{BOOT} {boot()}\n".encode())
        else:
            os.fsync(self._fd)
            Path(self.path + RANGES).unlink()

    def drop(self, *, listed: bool = False) -> None:
        """Take it away, with its list where that is its own and not that of the whole file."""
        if listed:
            Path(self.path + RANGES).unlink(missing_ok=True)
        Path(self.path + PART).unlink()
        self.close()

    def close(self) -> None:
        """Let go of it; what is written stays for a later attempt."""
        for fd in (self._list, self._fd):
            if fd >= 0:
                os.close(fd)
        self._list = self._fd = -1


def begin(path: str, size: int) -> Part | None:
    """Return the file in the making, or None while another program, or another source, is at it. Raises OSError."""
    while True:
        fd = os.open(path + PART, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                return None
            raise
        if _still(path + PART, fd):
            return Part(path, size, fd)
        os.close(fd)  # it was renamed or removed between the two calls


def _still(path: str, fd: int) -> bool:
    try:
        return Path(path).stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False

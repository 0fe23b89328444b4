"""GPUs that are held for a job by lock files, as ports are: this user's jobs on this host do not get the same ones.

A device is named by what no other one is called, as its UUID.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from distdl_jupyter.node import ports


class HeldGpus:
    """The GPUs that were taken for a job, until they are given back or the process ends."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def take(self, devices: Sequence[str], count: int, owner: str) -> list[str]:
        """Take ``count`` devices, the first that are free, and return them; [] when fewer are, and none is taken.

        ``owner`` is what others are told of who holds them. Raises OSError.
        """
        taken: dict[str, int] = {}
        with _alone():
            for device in devices:
                if len(taken) < count and (fd := _locked(device)) is not None:
                    taken[device] = fd
            self._fds += taken.values()
            if len(taken) < count:
                self.release()
                return []
        for fd in taken.values():
            os.truncate(fd, 0)
            os.pwrite(fd, owner.encode(), 0)
        return list(taken)

    def release(self) -> None:
        """Give all of them back, also where a forked process has inherited the lock."""
        while self._fds:
            fd = self._fds.pop()
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def owners(devices: Iterable[str]) -> list[str]:
    """Return who holds some of these devices, each once. Raises OSError."""
    found: dict[str, None] = {}
    with _alone():
        for device in devices:
            if (fd := _locked(device)) is not None:
                os.close(fd)
            else:
                found[_file(device).read_text(encoding="utf-8")] = None
    return [owner for owner in found if owner]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let no other process look at the locks: what it tries for a moment would seem to be taken."""
    fd = os.open(_file("all"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _locked(device: str) -> int | None:
    """Return the descriptor of a device's lock, None when another one has it. Raises OSError."""
    fd = os.open(_file(device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _file(device: str) -> Path:
    return ports.locks("gpus") / device.replace("/", "_")

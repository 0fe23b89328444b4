"""Whose turn it is: one client at a time runs something on the ranks of a session.

A lock file, so that the turn ends with the process that had it, whatever became of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING

from distdl_jupyter.ranks.answer import RanksBusy
from distdl_jupyter.worker.serving.listener import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.store import JobFolder

#: How often a turn that is taken is asked for, and the seconds between.
_LOOKS, _PAUSE = 5, 0.005


@contextlib.contextmanager
def turn(folder: JobFolder, doing: str, owner: str = "") -> Iterator[bool]:
    """Hold the turn, saying what is done with it. Raises RanksBusy when another client has it.

    Yields whether the same ``owner`` had it last, so that nobody else has asked the ranks anything since.
    """
    fd = os.open(folder.path / NOTES / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _taken(fd):
            raise busy(*_said(os.pread(fd, 4096, 0)))
        before = os.pread(fd, 4096, 0)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"doing": doing[:500], "pid": os.getpid(), "owner": owner}).encode(), 0)
        yield bool(owner) and _owner(before) == owner
    finally:
        os.close(fd)


def busy(doing: str, pid: int = 0) -> RanksBusy:
    """Return the error that says what the ranks run, and which process asked for it (0: it is gone)."""
    of = "" if not pid else " of this notebook" if pid == os.getpid() else f" of another kernel (process {pid})"
    what = f"{doing}{of}" if doing else f"a cell{of}"
    if not pid:
        what += ", started by a kernel that is gone"
    return RanksBusy(
        f"The ranks are busy with {what}.", code="ranks-busy", hint="Wait for it to finish, or interrupt the ranks."
    )


def _taken(fd: int) -> bool:
    """Take the lock; who only looks whether it is free holds it for an instant."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE)
    return False


def _owner(text: bytes) -> str:
    try:
        return str(json.loads(text)["owner"])
    except (ValueError, LookupError, TypeError):
        return ""


def holder(folder: JobFolder) -> int:
    """Return the process that has the turn, 0 when nobody has."""
    fd = os.open(folder.path / NOTES / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said(os.pread(fd, 4096, 0))[1]
    finally:
        os.close(fd)
    return 0


def _said(text: bytes) -> tuple[str, int]:
    try:
        said = json.loads(text)
        return str(said["doing"]), int(said["pid"])
    except (ValueError, LookupError, TypeError):
        return "", -1

"""Whose turn it is: one client at a time runs something on the ranks of a session.

A lock file, so that the turn ends with the process that had it, whatever became of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING

from distdl_jupyter.ranks.answer import RanksBusy
from distdl_jupyter.worker.serving.door import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.store import JobFolder


@contextlib.contextmanager
def turn(folder: JobFolder, doing: str) -> Iterator[None]:
    """Hold the turn, saying what is done with it. Raises RanksBusy when another client has it."""
    fd = os.open(folder.path / NOTES / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy(*_said(os.pread(fd, 4096, 0))) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"doing": doing[:500], "pid": os.getpid()}).encode(), 0)
        yield
    finally:
        os.close(fd)


def busy(doing: str, pid: int = 0) -> RanksBusy:
    """Return the error that says what the ranks run, and which process asked for it (0: it is gone)."""
    of = "" if not pid else " of this notebook" if pid == os.getpid() else f" of another kernel (process {pid})"
    what = f"{doing}{of}" if doing else f"a cell{of}"
    if not pid:
        what += ", which a kernel started that is gone"
    return RanksBusy(f"The ranks are busy with {what}.", hint="Wait for its end, or interrupt the ranks.")


def holder(folder: JobFolder) -> int:
    """Return the process that has the turn, 0 when nobody has."""
    try:
        with turn(folder, ""):
            return 0
    except RanksBusy:
        return _said((folder.path / NOTES / "turn").read_bytes())[1]


def _said(text: bytes) -> tuple[str, int]:
    try:
        said = json.loads(text)
        return str(said["doing"]), int(said["pid"])
    except (ValueError, LookupError, TypeError):
        return "", -1

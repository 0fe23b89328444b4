"""Locks by which one process shows the others that it lives: ``flock`` on a file, given back whenever it dies.

Some file systems keep such locks to one host (Lustre with ``localflock``, NFS with ``local_lock``, BeeGFS): a lock that
a process of another host holds seems to be free. So the holder writes into the file who it is, with its host and that
host's boot, and sets the file's time now and then; a free lock proves that its holder is dead only on that host.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import DiskRefused
from distdl_jupyter.core.humanize import ago, short_id
from distdl_jupyter.node import processes

#: Seconds between two signs of a living holder, and of silence after which it may be gone: some file systems show what
#: another host has written up to a minute later.
BEAT, SILENT = 30.0, 120.0
#: Bytes of what a holder writes: one write of always as many, so that nobody reads half of it.
_WIDTH = 256
#: What a file system answers that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Holder(NamedTuple):
    """Who holds a lock, as far as this host knows."""

    #: Whether a process holds it that is seen from here.
    held: bool
    #: The host of the process that wrote itself down last, "" for this one.
    host: str = ""
    #: The last sign of it (epoch seconds).
    heard: float = 0.0

    @property
    def is_dead(self) -> bool:
        """Whether it is proven that no process holds the lock."""
        return not self.held and not self.host

    @property
    def is_elsewhere(self) -> bool:
        """Whether only a look at another host could tell."""
        return not self.held and bool(self.host)

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard of it for so long that its host may be gone."""
        return time.time() - self.heard > SILENT

    def describe(self) -> str:
        """Return where the supervisor of a job runs and when it was last heard, one sentence."""
        silence = time.time() - self.heard
        return f"Its supervisor runs on {self.host}, last heard {ago(silence) if silence >= 60 else 'just now'}."

    def remedy(self, id_: str) -> str:
        """Return what to do about a job whose supervisor runs on another host."""
        return f"Check it on {self.host}. If that host is gone for good, run: distdl lost {short_id(id_)}"


def holder(path: Path, *signs: Path) -> Holder:
    """Return who holds a lock; one that is not there is held by no process. ``signs`` are what its holder writes to.

    What cannot be looked at (this process may open no more files) counts as held: nobody is dead for that.
    """
    host = ""
    try:
        with path.open("rb", buffering=0) as file:
            host = processes.other_host(os.pread(file.fileno(), _WIDTH, 0).decode("utf-8", "replace"))
            held = not is_free(file.fileno())
    except (FileNotFoundError, NotADirectoryError):
        return Holder(held=False)
    except OSError:
        held = True
    return Holder(held=held, host=host, heard=last_sign(path, *signs))


def is_free(fd: int) -> bool:
    """Say whether no process keeps this one out of a file; a file system without locks does not tell."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Say whether a process holds the lock, as seen from this host."""
    return holder(path).held


def last_sign(*paths: Path) -> float:
    """Return when one of the files was written to last (epoch seconds), 0 when none is there."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def sign(path: Path) -> None:
    """Write down that this process holds the lock. Where that cannot be written, what stands there stays."""
    text = processes.mark().encode()
    try:
        # A descriptor of its own: on a network file system closing it is what shows the text to other hosts.
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, text.ljust(_WIDTH - 1) + b"\n", 0)
        finally:
            os.close(fd)
    except OSError:
        return


def prove(path: Path) -> None:
    """Make the file of a lock and see that the lock keeps others out. Raises DiskRefused where it does not, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with path.open("rb", buffering=0) as other:
            works = not is_free(other.fileno())
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        works = False
    finally:
        os.close(fd)
    if not works:
        raise DiskRefused(
            f"{path.parent.parent} is on a file system that does not support file locks ({limits.file_system(path)}), "
            "so it is unknown whether a job is running.",
            code="no-file-locks",
            hint="Set DISTDL_HOME to a folder on a local disk, or mount that file system with flock.",
        )

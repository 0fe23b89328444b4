"""Private files, disk errors, a job's disk reserve, and locks that prove that a process is alive.

The reserve is a small file that is freed when the disk is full, to report the problem, cancel the job and record its
end. If no space can be reserved, the job runs without a reserve.

A liveness lock is a ``flock`` on a file, which the kernel releases when the holder dies. On some file systems these
locks are local to a host (Lustre with ``localflock``, NFS with ``local_lock``, BeeGFS). The holder therefore writes its
process, its host and the host's boot id into the file, and updates the file's time regularly. A free lock proves that
its holder is dead only on the holder's host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.core.errors import DiskRefused
from distdl_jupyter.core.humanize import ago, short_id
from distdl_jupyter.core.machine import LIMITS
from distdl_jupyter.node import processes
from distdl_jupyter.worker import owned

#: Bytes of a job's disk reserve.
RESERVE_BYTES = 64 * 1024
_MOVE_REMEDY = "set DISTDL_HOME to a folder on another disk."
#: Code and remedy of each disk error, by errno.
DISK_ERRORS = {
    **{number: LIMITS[number] for number in (errno.EMFILE, errno.ENFILE)},
    errno.ENOSPC: ("disk-full", f"Free space on that disk, or {_MOVE_REMEDY}"),
    errno.EDQUOT: ("disk-quota", f"Your disk quota is used up. Delete files, or {_MOVE_REMEDY}"),
    errno.EFBIG: ("file-size-limit", "The file has reached the limit of your user. Raise it with 'ulimit -f'."),
    errno.EIO: ("disk-damaged", f"The disk is damaged or not available. Repair it, or {_MOVE_REMEDY}"),
}
#: Code and remedy of any other disk error.
OTHER_ERROR = ("disk-not-writable", "Set DISTDL_HOME to a folder that you can write to.")


def write_json(path: Path, data: Any) -> None:
    """Replace the file with ``data`` as JSON and sync it; its folder is created (0700) if missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, json.dumps(data, indent=1), sync=True)


def replace_file(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Replace the file with text or bytes, and ``sync`` it to the disk. Raises OSError if its folder is missing."""
    owned.write(path, content.encode() if isinstance(content, str) else content, sync=sync)


def make_disk_error(error: OSError, path: Path, verb: str = "written") -> DiskRefused:
    """Return the error for a ``path`` that cannot be written or read."""
    code, hint = DISK_ERRORS.get(error.errno or 0, OTHER_ERROR)
    return DiskRefused(f"{path} cannot be {verb}: {error.strerror or error}.", code=code, hint=hint)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise DiskRefused for any OSError inside."""
    try:
        yield
    except OSError as error:
        raise make_disk_error(error, path) from error


def hold_reserve(path: Path) -> bool:
    """Create the reserve; return False if the disk does not have enough space."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(RESERVE_BYTES))  # random bytes, because file systems may compress zeros
        return True
    return False


def free_half_reserve(path: Path) -> bool:
    """Free half of the remaining reserve; return False if nothing is left."""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        os.truncate(path, size // 2 if size > RESERVE_BYTES // 8 else 0)
        return size > 0
    return False


def free_reserve(path: Path) -> None:
    """Free the whole reserve."""
    with contextlib.suppress(OSError):
        path.unlink()


#: Seconds between heartbeats of a holder.
HEARTBEAT_SECONDS = 30.0
#: Seconds without a heartbeat after which a holder may be dead; some file systems show writes a minute late.
_HEARTBEAT_TIMEOUT_SECONDS = 120.0
#: Size in bytes of a holder's record, which is written in one call so that no reader sees half of it.
_RECORD_BYTES = 256


class Holder(NamedTuple):
    """The holder of a lock, as seen from this host; ``last_heartbeat`` is in epoch seconds.

    ``host`` is the host of the last process that signed the lock, or "" for this host.
    """

    is_held: bool
    host: str = ""
    last_heartbeat: float = 0.0

    @property
    def is_dead(self) -> bool:
        """Whether it is proven that no process holds the lock."""
        return not self.is_held and not self.host

    @property
    def is_on_other_host(self) -> bool:
        """Whether only a check on its host can tell if the lock is held."""
        return not self.is_held and bool(self.host)

    @property
    def is_silent(self) -> bool:
        """Whether its last heartbeat is so old that its host may be down."""
        return time.time() - self.last_heartbeat > _HEARTBEAT_TIMEOUT_SECONDS

    def describe(self) -> str:
        """Return a sentence with the supervisor's host and the time of its last heartbeat."""
        age = time.time() - self.last_heartbeat
        return f"Its supervisor runs on {self.host}. Last heartbeat: {ago(age) if age >= 60 else 'just now'}."

    def get_remedy(self, id_: str) -> str:
        """Return what to do about a job whose supervisor runs on another host."""
        return f"Check it on {self.host}. If that host is gone for good, run: distdl lost {short_id(id_)}"


def read_holder(path: Path, *other_files: Path) -> Holder:
    """Return the holder of a lock, who also writes to ``other_files``; a missing lock is not held.

    A lock that cannot be checked (too many open files, a file system without locks) counts as held.
    """
    is_held, host = True, ""
    try:
        with path.open("rb", buffering=0) as file:
            host = processes.find_other_host(os.pread(file.fileno(), _RECORD_BYTES, 0).decode("utf-8", "replace"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_held = False
    except (FileNotFoundError, NotADirectoryError):
        return Holder(is_held=False)
    except OSError:
        pass
    return Holder(is_held, host, get_last_write(path, *other_files))


def get_last_write(*paths: Path) -> float:
    """Return the latest modification time of the files (epoch seconds), or 0 if none exists."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def sign(path: Path) -> None:
    """Record that this process holds the lock; if that fails, the old record is not changed."""
    # A separate file object: on a network file system, closing it makes the text visible to other hosts.
    with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
        file.write(processes.make_mark().encode().ljust(_RECORD_BYTES - 1) + b"\n")


class JobLock:
    """The lock for writing a job's log, held as long as a descriptor of the lock file is open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def acquire(cls, path: Path, *, of_other_host: bool = False) -> JobLock | None:
        """Acquire the lock without waiting and sign it; return None if another process holds it. Raises OSError.

        A lock signed on another host is acquired only with ``of_other_host``; its holder must be known to be dead.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if of_other_host or not read_holder(path).host:
                sign(path)
                return cls(fd)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    @classmethod
    def acquire_new(cls, path: Path) -> JobLock:
        """Acquire the lock of a new job. Raises DiskRefused if the file system has no file locks, and OSError."""
        try:
            lock = cls.acquire(path)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            lock = None
        if lock is not None:
            if read_holder(path).is_held:
                return lock
            lock.release()
        message = f"{path.parent.parent} is on a file system without file locks, so it is unknown whether a job runs."
        hint = "Set DISTDL_HOME to a folder on a local disk, or mount that file system with flock."
        raise DiskRefused(message, code="no-file-locks", hint=hint)

    def release(self) -> None:
        """Close this process's descriptor; the lock is released unless another process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

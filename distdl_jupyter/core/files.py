"""Writes files that only their owner can read, explains disk errors, and manages a job's disk reserve.

The reserve is a small file that is freed when the disk is full. The freed space is enough to report the problem, to
cancel the job and to record its end. If no space can be reserved, the job runs without a reserve.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import DiskRefused
from distdl_jupyter.core.limits import LIMITS

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
    """Replace the file with ``data`` as JSON; its folder is created (0700) if it is missing. Raises OSError.

    The data is synced to the disk when this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, json.dumps(data, indent=1), sync=True)


def replace_file(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Replace the file with text or bytes; ``sync`` also syncs it to the disk. Raises OSError.

    The folder is not created, because a cache must not recreate the folder of a deleted job.
    """
    # The random name and O_EXCL prevent other users from creating this file or a link with its name first.
    temporary = path.with_name(f".{path.name}-{os.urandom(6).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
        if size := path.stat().st_size:
            os.truncate(path, size // 2 if size > RESERVE_BYTES // 8 else 0)
            return True
    return False


def free_reserve(path: Path) -> None:
    """Free the whole reserve."""
    with contextlib.suppress(OSError):
        path.unlink()

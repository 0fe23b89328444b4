"""Writes private files, and opens a file only if no other user can have written it, because unpickling runs code.

The job's folder is private. The checks also apply if it was opened to others, who may have put a file or link there.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from distdl_jupyter import permissions


def open_own(path: Path) -> IO[bytes]:
    """Open a regular file that only this user or root can write. Raises OSError, PermissionError with the reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(f"{path} is a symbolic link, so it was not opened") from None
        raise
    if reason := check(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(f"{path} {reason}, so it was not opened")
    return os.fdopen(descriptor, "rb")


def check(status: os.stat_result) -> str:
    """Return the reason why a file with this status is not trusted, or "" if it is trusted."""
    return permissions.find_refusal(status) if stat.S_ISREG(status.st_mode) else "is not a regular file"


def open_private(path: str, flags: int) -> int:
    """Open a file with mode 0600 regardless of the umask (an ``opener`` for ``open``)."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write(path: Path, data: bytes | bytearray, *, sync: bool = False) -> None:
    """Write a private file atomically. Raises OSError; a failed write leaves no temporary file."""
    # The random name and O_EXCL (mode x) prevent other users from creating this file or a link with its name first.
    temporary = path.with_name(f".{path.name}-{os.urandom(6).hex()}")
    try:
        with open(temporary, "xb", opener=open_private) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a partial file would use space on a full disk
        raise

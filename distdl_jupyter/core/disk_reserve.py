"""A small file that reserves disk space while a job runs and is freed when the disk is full.

The freed space is enough to report the problem, to cancel the job and to record its end. If no space can be reserved,
the job runs without it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: Reserved bytes.
SIZE = 64 * 1024


def hold(path: Path) -> bool:
    """Create the file with allocated blocks; return False if the disk has not enough space."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, SIZE)
            else:  # macOS
                os.write(descriptor, bytes(SIZE))
        finally:
            os.close(descriptor)
        return True
    return False


def give_half(path: Path) -> bool:
    """Free half of the remaining reserve; return False if nothing is left."""
    with contextlib.suppress(OSError):
        if size := path.stat().st_size:
            os.truncate(path, size // 2 if size > SIZE // 8 else 0)
            return True
    return False


def left(path: Path) -> int:
    """Return the number of bytes that are still reserved."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def give(path: Path) -> None:
    """Free the whole reserve."""
    with contextlib.suppress(OSError):
        path.unlink()

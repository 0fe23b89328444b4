"""A little room on the disk that a job holds while it lives, to be given back when the disk is full.

With it there is room to say so, to be canceled and to write how the job ended. Where none can be held, as on a disk
without any, everything goes on without.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: Bytes that are held.
SIZE = 64 * 1024


def hold(path: Path) -> bool:
    """Make the file, with blocks of its own; False when the disk has no room for all of it."""
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
    """Give half of what is left back to the disk; False when there is nothing."""
    with contextlib.suppress(OSError):
        if size := path.stat().st_size:
            os.truncate(path, size // 2 if size > SIZE // 8 else 0)
            return True
    return False


def left(path: Path) -> int:
    """Return how many bytes are held still."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def give(path: Path) -> None:
    """Give all of it back."""
    with contextlib.suppress(OSError):
        path.unlink()

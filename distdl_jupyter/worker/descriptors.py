"""Descriptors of a rank's own, with high numbers: code that closes "all" descriptors mostly means the first ones."""

from __future__ import annotations

import fcntl
import os

_HIGH = 100


def lifted(fd: int) -> int:
    """Move a descriptor to a high number and return that; it stays where it is when there is no free one."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        return fd
    os.close(fd)
    return high

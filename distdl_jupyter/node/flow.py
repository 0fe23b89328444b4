"""Pipes that are written to all the time: how much they hold, how much waits in them, how often they are read.

Whoever reads each line at once takes from a training loop the processor that it needs. What is read is not known here.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
import time

#: Bytes that the pipes of one reader may hold, and one of them: a user has 64 MB of pipes on Linux (see pipe(7)).
_ALL, _MOST, LEAST = 16 * 1024 * 1024, 1024 * 1024, 64 * 1024
#: Seconds between two rounds while something is written all the time, and rounds that may follow each other at once.
_PAUSE, BURST = 0.03, 20


class Pace:
    """How often pipes are read: at once after a while of silence, ``1 / _PAUSE`` times a second in the long run."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def round(self, *, hurried: bool) -> None:
        """Count a round that read something; where a pipe was half full there is no time for a pause."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) / _PAUSE) - (not hurried)
        self._at = now

    def pause(self) -> float:
        """Return the seconds until the next round."""
        return max(0.0, -self._left * _PAUSE - (time.monotonic() - self._at)) if self._left < 0 else 0.0


def widen(fd: int, pipes: int) -> int:
    """Let a pipe, one of so many, hold as much as it may; return how many bytes it holds at least."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return 16 * 1024  # macOS: a pipe begins with that
    wanted = max(LEAST, min(_MOST, _ALL // max(1, pipes)))
    with contextlib.suppress(OSError):  # no pipe, or the user's pipes hold as much as they may
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << (wanted.bit_length() - 1))
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return LEAST


def waiting(fd: int) -> int:
    """Return how many bytes can be read at once (FIONREAD, ioctl_pipe and pipe(7))."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])

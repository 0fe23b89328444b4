"""Requests to a running supervisor: one JSON line each, appended to the job's ``control`` file by anyone who may.

A file and not a socket, because it works from any process of the user, survives whoever wrote it, has no address and
no length limit on its path. A request is taken up within a tenth of a second.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import disk, locks, reserve
from distdl_jupyter.core.events import read

if TYPE_CHECKING:
    from pathlib import Path


def request(control: Path, action: str, **fields: Any) -> None:
    """Append a request ("cancel" with ``now``) for the supervisor. Raises DiskRefused."""
    # The first byte ends what another request could not write whole: none is ever glued to it.
    line = b"\n" + json.dumps({"type": action, **fields}).encode() + b"\n"
    with disk.writing(control):
        try:
            _append(control, line)
        except OSError:
            # A job must be stopped above all when its disk is full.
            if not reserve.give_half(control.with_name("reserve")):
                raise
            _append(control, line)


def _append(control: Path, line: bytes) -> None:
    fd = os.open(control, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


class Inbox:
    """The supervisor's side: each request once. While it is asked for them, other hosts see that it lives."""

    def __init__(self, control: Path, lock: Path | None = None) -> None:
        self._control = control
        self._lock = lock
        self._beat = time.monotonic()
        self._cursor = 0

    def take(self) -> list[dict[str, Any]]:
        """Return the requests since the last call."""
        if self._lock is not None and time.monotonic() >= self._beat:
            self._beat = time.monotonic() + locks.BEAT
            with contextlib.suppress(OSError):
                os.utime(self._lock)
        requests, self._cursor = read(self._control, self._cursor)
        return requests

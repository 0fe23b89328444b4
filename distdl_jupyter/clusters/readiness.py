"""When a service is ready: it says so in a line."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

#: Seconds between two calls of ``while_waiting``.
_POLL_SECONDS = 0.5


def await_line(fd: int, wanted: str, timeout: float, while_waiting: Callable[[], object] = bool) -> str:
    """Read until ``wanted`` was said, the stream ended or ``timeout`` seconds are over; return what was said.

    ``while_waiting`` is called meanwhile, and ends the wait by raising.
    """
    said, until = "", time.monotonic() + timeout
    while wanted not in said and (left := until - time.monotonic()) > 0:
        if select.select([fd], [], [], min(left, _POLL_SECONDS))[0]:
            content = os.read(fd, 65_536)
            if not content:
                break
            said += content.decode(errors="replace")
        while_waiting()
    return said

"""When a service is ready: it says so in a line."""

from __future__ import annotations

import os
import select
import time


def await_line(fd: int, wanted: str, patience: float) -> str:
    """Read until ``wanted`` was said, the stream ended or ``patience`` seconds are over; return what was said."""
    said, until = "", time.monotonic() + patience
    while wanted not in said and (left := until - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            content = os.read(fd, 65_536)
            if not content:
                break
            said += content.decode(errors="replace")
    return said

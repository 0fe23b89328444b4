"""Requests to a running supervisor: one JSON line each, appended to the job's ``control`` file by anyone who may.

A file and not a socket, because it works from any process of the user, survives whoever wrote it, has no address and
no length limit on its path. A request is taken up within a tenth of a second.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.events import read

if TYPE_CHECKING:
    from pathlib import Path


def request(control: Path, action: str, **fields: Any) -> None:
    """Append a request ("cancel" with ``now``) for the supervisor."""
    line = json.dumps({"type": action, **fields}).encode() + b"\n"
    fd = os.open(control, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


class Inbox:
    """The supervisor's side: each request once."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._cursor = 0

    def take(self) -> list[dict[str, Any]]:
        """Return the requests since the last call."""
        requests, self._cursor = read(self._control, self._cursor)
        return requests

"""What the program says to the job: one JSON line each, on its standard output.

``{"type": "ended", "rank", "code", "signal", "evidence"}`` is the last word on a rank. ``replaced`` (with the same
fields and ``pid``) says that its process failed and another one takes its place, ``left`` that the others go on
without it; ``note`` carries ``level``, ``text`` and ``code`` for the user, ``gave-up`` the ``text`` that
says why the job ends although no process has failed.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any


class Words:
    """The writing end ``fd``. A job that does not read any more is about to end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def ended(self, rank: int, code: int | None, evidence: str = "") -> None:
        """Say how a rank's last process ended; None when nobody knows, a negative number is a signal."""
        self._say("ended", rank=rank, **_how(code), evidence=evidence)

    def replaced(self, rank: int, pid: int, code: int) -> None:
        """Say that a rank's process failed and another one takes its place."""
        self._say("replaced", rank=rank, pid=pid, **_how(code), evidence="")

    def left(self, rank: int, pid: int, evidence: str) -> None:
        """Say that a rank's process has gone and the others go on without it."""
        self._say("left", rank=rank, pid=pid, code=None, signal=None, evidence=evidence)

    def gave_up(self, text: str) -> None:
        """Say why the job ends although no process has failed."""
        self._say("gave-up", text=text)

    def note(self, level: str, text: str, code: str) -> None:
        """Tell the user something."""
        self._say("note", level=level, text=text, code=code)

    def order(self, type_: str, **fields: Any) -> None:
        """Say what is to be done with a process (see ``__main__``)."""
        self._say(type_, **fields)

    def _say(self, type_: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"type": type_, **fields}).encode() + b"\n")


def _how(code: int | None) -> dict[str, Any]:
    if code is None or code >= 0:
        return {"code": code, "signal": None}
    try:
        name = signal.Signals(-code).name.removeprefix("SIG")
    except ValueError:  # a real-time signal
        name = str(-code)
    return {"code": None, "signal": name}

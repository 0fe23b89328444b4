"""Request the stacks of all threads from the ranks of this machine, and read the responses.

Each rank has a file ``rank-N.stacks`` (see ``worker.stacks``): its first line identifies the process and the request
signal, and the responses follow. A signal without a handler would kill a process, so it is sent only if the process is
provably still that rank and catches the signal. A ``StackRequest`` never blocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.node import processes

#: Timeout in seconds for a response.
TIMEOUT_SECONDS = 5.0
#: Seconds without new output after which a response is complete.
_QUIET_SECONDS = 0.15
#: Seconds to wait after the stacks for the line with the last collective operations.
_COLLECTIVES_TIMEOUT = 1.0
_COLLECTIVES_PREFIX = '{"collectives": '
#: Maximum bytes read of a response; a hundred threads with deep stacks need far less.
_MAX_BYTES = 2_000_000
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger"}
_ENDED_MESSAGE = "Its process has ended."


@dataclass(frozen=True, slots=True)
class StackDump:
    """The stacks of a rank: ``text`` in the format of ``faulthandler``, or ``missing``, one sentence with the reason.

    ``state`` is the state of its process ("running", "sleeping"), "" if unknown. ``about`` is the first line of its
    file, ``collectives`` are its last collective operations (``worker.hooks.distributed``).
    """

    text: str = ""
    missing: str = ""
    state: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    collectives: list[dict[str, Any]] = field(default_factory=list)


class StackRequest:
    """A request to one rank, whose files are in ``folder``."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = Path(os.path.realpath(folder), f"rank-{rank}.stacks")
        self._started_at = self._grew_at = time.monotonic()
        self._size = self._offset = 0
        self._header = _read_header(self._path)
        self._state = ""
        self._problem = self._send_signal()

    def _send_signal(self) -> str:
        """Send the signal; return "", or why it was not sent."""
        if not self._header:
            return "Its process is still starting."
        pid, number = int(self._header["pid"]), int(self._header["signal"])
        if sys.platform == "linux":
            if self._has_ended(pid):
                return _ENDED_MESSAGE
            if self._state.startswith("stopped"):
                return f"Its process is {self._state}. To continue it, run on its machine: kill -CONT {pid}"
            if not processes.has_handler(pid, number):
                name = processes.read_file(pid, "comm").decode(errors="replace").strip()
                return f"Its process is now another program ({name or 'unknown'}), which has no stack traces."
            if Path(f"/proc/{pid}/fd/{self._header.get('fd')}").resolve() != self._path:
                return "It has closed the file for its stack traces."
        self._offset = _read_size(self._path)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return _ENDED_MESSAGE
        except PermissionError:
            return "Its process now belongs to another user."
        return ""

    def _has_ended(self, pid: int) -> bool:
        """Return whether the rank's process has exited; else update its state."""
        fields = processes.read_stat(pid)
        letter, started = (fields[0].decode(), fields[19].decode()) if fields else ("", "")
        has_ended = letter in ("", "Z", "X") or started != self._header.get("start")
        self._state = "" if has_ended else _STATES.get(letter, "")
        return has_ended

    def poll(self) -> StackDump | None:
        """Return the complete response, or None while it is pending. After the timeout, it may be incomplete."""
        if self._problem:
            return self._build_dump(missing=self._problem)
        now, size = time.monotonic(), _read_size(self._path)
        if size != self._size:
            self._size, self._grew_at = size, now
        is_late = now - self._started_at > TIMEOUT_SECONDS
        if not is_late and (size <= self._offset or now - self._grew_at < _QUIET_SECONDS):
            return None
        text = ""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read(_MAX_BYTES).decode("utf-8", errors="replace")
        main = str(self._header.get("main") or "hread 0x")
        is_complete = text.endswith("\n") and (main in text or now - self._grew_at > 1.0)
        has_collectives = not self._header.get("collectives") or f"\n{_COLLECTIVES_PREFIX}" in text
        if text and (is_late or (is_complete and (has_collectives or now - self._grew_at > _COLLECTIVES_TIMEOUT))):
            return self._build_dump(text)
        if not is_late:
            return None
        if sys.platform == "linux" and self._has_ended(int(self._header["pid"])):
            return self._build_dump(missing=_ENDED_MESSAGE)
        state = f"; its process is {self._state}" if self._state else ""
        return self._build_dump(missing=f"No response within {TIMEOUT_SECONDS:.0f} s{state}.")

    def _build_dump(self, text: str = "", missing: str = "") -> StackDump:
        """Return the response with stacks and collective operations separated."""
        lines, collectives = text.splitlines(keepends=True), list[dict[str, Any]]()
        for line in lines:
            if line.startswith(_COLLECTIVES_PREFIX):
                with contextlib.suppress(ValueError, TypeError):
                    collectives = [row for row in json.loads(line)["collectives"] if isinstance(row, dict)]
        stacks = "".join(line for line in lines if not line.startswith(_COLLECTIVES_PREFIX))
        return StackDump(stacks, missing, self._state, self._header, collectives)


def _read_header(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        line = file.readline(10_000)
        header = json.loads(line) if line.endswith(b"\n") else None
        if isinstance(header, dict) and isinstance(header.get("pid"), int) and isinstance(header.get("signal"), int):
            return header
    return {}


def _read_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""Request the stacks of all threads from the ranks of this machine, and read the responses.

Each rank has a file ``rank-N.stacks`` (see ``worker.stacks``): its first line identifies the process and the request
signal, and the responses follow. A signal without a handler would kill a process, so it is sent only if the process is
provably still that rank and catches the signal.

A ``StackRequest`` never blocks; ``gather`` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.node import processes

#: Timeout in seconds for a response.
TIMEOUT = 5.0
#: Seconds without new output after which a response is complete.
_QUIET = 0.15
#: Seconds to wait after the stacks for the line with the last collective operations.
_COLLECTIVES_TIMEOUT = 1.0
_COLLECTIVES = '{"collectives": '
#: Maximum bytes read of a response; a hundred threads with deep stacks need far less.
_LONGEST = 2_000_000
_PROC = Path("/proc")
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger"}
_STARTING = "Its process is still starting."
_ENDED = "Its process has ended."


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


class _RankRequest:
    """The pending request to one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = time.monotonic()
        self._size, self._grew = 0, self._since
        self._about = _first_line(path)
        self._state = ""
        self._after = 0
        self.refused = self._ask()

    def _ask(self) -> str:
        """Send the signal; return "", or why it was not sent."""
        if not self._about:
            return _STARTING
        pid, number = int(self._about["pid"]), int(self._about["signal"])
        if sys.platform == "linux" and (why := self._refusal(pid, number)):
            return why
        self._after = _size(self._path)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return _ENDED
        except PermissionError:
            return "Its process now belongs to another user."
        return ""

    def _refusal(self, pid: int, number: int) -> str:
        """Return why the signal must not be sent, "" when it may."""
        letter, started = _state(pid)
        self._state = _STATES.get(letter, "")
        if letter in ("", "Z", "X") or started != self._about.get("start"):
            self._state = ""
            return _ENDED
        if letter in ("T", "t"):
            return f"Its process is {self._state}. To continue it, run on its machine: kill -CONT {pid}"
        if not processes.catches(pid, number):
            name = processes.read(pid, "comm").decode(errors="replace").strip()
            return f"Its process is now another program ({name or 'unknown'}), which has no stack traces."
        if _target(pid, int(self._about.get("fd", -1))) != str(self._path):
            return "It has closed the file for its stack traces."
        return ""

    def answer(self) -> StackDump | None:
        """Return the complete response, None while it is pending."""
        if self.refused:
            return self._build_answer(missing=self.refused)
        now, size = time.monotonic(), _size(self._path)
        if size != self._size:
            self._size, self._grew = size, now
        if size > self._after and now - self._grew >= _QUIET:
            text = self._read()
            main = str(self._about.get("main") or "hread 0x")
            whole = text.endswith("\n") and (main in text or now - self._grew > 1.0)
            complete = not self._about.get("collectives") or f"\n{_COLLECTIVES}" in text
            if whole and (complete or now - self._grew > _COLLECTIVES_TIMEOUT):
                return self._build_answer(text=text)
        return self._last() if now - self._since > TIMEOUT else None

    def _last(self) -> StackDump:
        """Return the response after the timeout, even if it is incomplete."""
        text = self._read()
        pid = int(self._about["pid"])
        letter, started = _state(pid)
        if text:
            return self._build_answer(text=text)
        if sys.platform == "linux" and (letter in ("", "Z", "X") or started != self._about.get("start")):
            return self._build_answer(missing=_ENDED)
        self._state = _STATES.get(letter, "")
        shown = f"; its process is {self._state}" if self._state else ""
        return self._build_answer(missing=f"No response within {TIMEOUT:.0f} s{shown}.")

    def _read(self) -> str:
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._after)
            return file.read(_LONGEST).decode("utf-8", errors="replace")
        return ""

    def _build_answer(self, *, text: str = "", missing: str = "") -> StackDump:
        stacks, collectives = _split(text)
        return StackDump(stacks, missing, self._state, self._about, collectives)


class StackRequest:
    """A request to all ranks of one folder; ``answers`` returns each response once, when it has arrived."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        real = Path(os.path.realpath(folder))
        self._open = {rank: _RankRequest(real / f"rank-{rank}.stacks") for rank in ranks}

    @property
    def done(self) -> bool:
        """Whether every rank has responded or timed out."""
        return not self._open

    def answers(self) -> dict[int, StackDump]:
        """Return the responses received since the last call."""
        received = {rank: answer for rank, request in self._open.items() if (answer := request.answer()) is not None}
        for rank in received:
            del self._open[rank]
        return received


def gather(folder: Path, ranks: Iterable[int]) -> dict[int, StackDump]:
    """Request stacks and wait for all responses, at most ``TIMEOUT`` seconds."""
    request, answers = StackRequest(folder, ranks), dict[int, StackDump]()
    while True:
        answers |= request.answers()
        if request.done:
            return answers
        time.sleep(0.05)


def _split(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the stacks and the collective operations of a response."""
    lines = text.splitlines(keepends=True)
    collectives: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith(_COLLECTIVES):
            with contextlib.suppress(ValueError, TypeError):
                collectives = [row for row in json.loads(line)["collectives"] if isinstance(row, dict)]
    return "".join(line for line in lines if not line.startswith(_COLLECTIVES)), collectives


def _first_line(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        line = file.readline(10_000)
        header = json.loads(line) if line.endswith(b"\n") else None
        if isinstance(header, dict) and isinstance(header.get("pid"), int) and isinstance(header.get("signal"), int):
            return header
    return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> tuple[str, str]:
    """Return the state letter and the start time of a process, "" if it has exited."""
    fields = processes.stat(pid)
    return (fields[0].decode(), fields[19].decode()) if fields else ("", "")


def _target(pid: int, fd: int) -> str:
    try:
        return str((_PROC / str(pid) / "fd" / str(fd)).readlink())
    except OSError:
        return ""

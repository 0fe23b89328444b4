"""The processes of an elastic job: started, ended, reaped; ``Workers`` are those on this machine.

Each is in a session of its own, so that a signal reaches it with what it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

#: Seconds between TERM and KILL.
_GRACE = 2.0


class Staff(ABC):
    """At most one process for each rank of the job."""

    def __init__(self) -> None:
        self._kill_at: dict[int, float] = {}

    @abstractmethod
    def start(self, number: int, more: Mapping[str, str]) -> None:
        """Start the process of a rank with ``more`` in its environment. Raises OSError."""

    @abstractmethod
    def ended(self) -> list[tuple[int, int, int]]:
        """Return (rank, pid, exit code or negative signal) of those that ended since the last call."""

    @abstractmethod
    def signal(self, number: int, name: Literal["TERM", "KILL"]) -> None:
        """Signal the process of a rank, if there is one, with what it has started."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all of them at once."""

    def end(self, number: int) -> None:
        """Ask the process of a rank to end; ``press`` makes sure of it."""
        if number not in self._kill_at:
            self._kill_at[number] = time.monotonic() + _GRACE
            self.signal(number, "TERM")

    def press(self) -> None:
        """Kill those that were asked to end and have not."""
        for number, due in self._kill_at.items():
            if time.monotonic() > due:
                self.signal(number, "KILL")

    def forget(self, number: int) -> None:
        """Hear that the process of a rank has ended."""
        self._kill_at.pop(number, None)


class Workers(Staff):
    """Processes on this machine; ``environments`` has what each gets beside this process's own."""

    def __init__(self, argv: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._argv = list(argv)
        self._environments = environments
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, more: Mapping[str, str]) -> None:
        """Start the process of a rank with ``more`` in its environment. Raises OSError."""
        environment = {**os.environ, **self._environments[number], **more}
        self._processes[number] = subprocess.Popen(
            self._argv, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def ended(self) -> list[tuple[int, int, int]]:
        """Return (rank, pid, exit code or negative signal) of those that ended since the last call."""
        found = [(number, one.pid, code) for number, one in self._processes.items() if (code := one.poll()) is not None]
        for number, *_ in found:
            # What it has started itself would live on beside its successor.
            _send(self._processes.pop(number).pid, signal.SIGKILL)
            self.forget(number)
        return found

    def signal(self, number: int, name: Literal["TERM", "KILL"]) -> None:
        """Signal the process of a rank, if there is one, with what it has started."""
        if number in self._processes:
            _send(self._processes[number].pid, signal.Signals[f"SIG{name}"])

    def kill(self) -> None:
        """Kill all of them at once."""
        for process in self._processes.values():
            _send(process.pid, signal.SIGKILL)


def _send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)

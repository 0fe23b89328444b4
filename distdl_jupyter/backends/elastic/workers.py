"""The processes of an elastic job on this machine: started, ended, reaped; each in a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

#: Seconds between TERM and KILL.
_GRACE = 2.0


class Workers:
    """At most one process for each rank of the job; ``environments`` has what each gets beside this process's own."""

    def __init__(self, argv: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self._argv = list(argv)
        self._environments = environments
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[int, float] = {}

    def start(self, number: int, more: Mapping[str, str]) -> None:
        """Start the process of a rank. Raises OSError."""
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
            self._kill_at.pop(number, None)
        return found

    def end(self, number: int) -> None:
        """Ask the process of a rank to end; ``press`` makes sure of it."""
        process = self._processes.get(number)
        if process is not None and number not in self._kill_at:
            self._kill_at[number] = time.monotonic() + _GRACE
            _send(process.pid, signal.SIGTERM)

    def press(self) -> None:
        """Kill those that were asked to end and have not."""
        for number, due in self._kill_at.items():
            if time.monotonic() > due:
                _send(self._processes[number].pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all of them at once."""
        for process in self._processes.values():
            _send(process.pid, signal.SIGKILL)


def _send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)

"""The helper processes of a job on node 0."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from distdl_jupyter.host import processes
from distdl_jupyter.host.allotment import Place
from distdl_jupyter.host.meeting import NoMeeting

_SERVICE_PATIENCE = 60.0


class Services:
    """The helper processes of a job on node 0."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> set[int]:
        """The pids of the services."""
        return {process.pid for process in self._running}

    def start(self) -> None:
        """Start them and wait until each has said that it is ready. Raises NoMeeting."""
        for service in self._place.plan["services"]:
            process = self._start([self._place.fill(word) for word in service["arguments"]])
            self._running.append(process)
            ready, said = threading.Event(), bytearray()
            threading.Thread(target=_pass_on, args=(process, service["ready"].encode(), ready, said),
                             daemon=True).start()  # fmt: skip
            ready.wait(_SERVICE_PATIENCE)
            if service["ready"].encode() not in said:
                sys.stderr.write(said.decode(errors="replace"))
                raise NoMeeting(f"{service['name']} did not start on {self._place.node}.")

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        # A platform may signal all processes of a job; services must outlive the ranks that are being stopped.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return subprocess.Popen(
                [self._place.plan["python"], *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._place.common(),
            )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """End them."""
        for process in self._running:
            if process.stdin is not None:
                process.stdin.close()
        time.sleep(0.05 if self._running else 0)
        processes.send(self.pids, signal.SIGKILL)
        self._running.clear()


def _pass_on(process: subprocess.Popen[bytes], ready: bytes, event: threading.Event, said: bytearray) -> None:
    """Read a service's output: up to its ready line into ``said``, what comes later to this process's own output."""
    assert process.stdout is not None, "a service is started with a pipe"
    while line := process.stdout.readline():
        if event.is_set():
            with contextlib.suppress(OSError):
                os.write(2, line)
        else:
            said += line
            if ready in line:
                event.set()
    event.set()

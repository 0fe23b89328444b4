"""A program: leads the processes of an elastic Horovod job on other hosts, from the first of them.

``python -m distdl_jupyter.backends.elastic.far ADDRESS PORT LEAST SECONDS`` serves the meeting on ADDRESS. It starts
nothing itself: on its standard output it says what is to be done and how ranks end (``words``), on its standard input
it hears what became of that, one JSON line each:

* ``seats`` comes first: ``[[host, local rank], ...]`` of all ranks.
* ``hosts`` has the hosts that may run processes now: ``{host: slots}``.
* ``lost`` and ``back`` name a ``host`` that nobody has taken away; ``says`` is the sentence that says why it went.
* ``ended`` gives ``rank``, ``pid`` and ``code``, negative for a signal.
* ``cancel``: somebody ends the job.

The orders are ``start`` with ``rank`` and ``environment``, and ``signal`` with ``rank`` and ``name``. When its input
ends, nobody wants the job any more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal

from distdl_jupyter.backends.elastic.driver import Driver, Terms
from distdl_jupyter.backends.elastic.meeting import Meeting
from distdl_jupyter.backends.elastic.words import Words
from distdl_jupyter.backends.elastic.workers import Staff
from distdl_jupyter.backends.elastic.world import Seat


def main() -> int:
    """Run the job and return an exit code."""
    address, port, least, patience = sys.argv[1:]
    words = Words(_own_output())
    seats = [
        Seat(number, str(host), int(local))
        for number, (host, local) in enumerate(json.loads(sys.stdin.readline())["seats"])
    ]
    report = Report()
    staff = FarStaff(words, report)
    driver = Driver(seats, Terms.of(least, patience), staff, words)
    meeting = Meeting(address, int(port), driver.ask)
    meeting.open()
    threading.Thread(target=report.listen, args=(driver,), name="orders", daemon=True).start()
    return driver.run(meeting, report, lambda: report.wanted)


def _own_output() -> int:
    """Return where orders are written; whatever else is printed goes to the error output."""
    found = os.dup(1)
    os.dup2(2, 1)
    return found


class Report:
    """What is told of hosts and processes; ``listen`` is the thread that hears it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[str, int] = {}
        self._ends: list[tuple[int, int, int]] = []
        #: Why hosts have gone that nobody had taken away.
        self.lost: dict[str, str] = {}
        #: Whether anybody still wants the job.
        self.wanted = True

    @property
    def hosts(self) -> Mapping[str, int]:
        """How many processes each host offers to run."""
        with self._lock:
            return {host: slots for host, slots in self._offered.items() if host not in self.lost}

    def ends(self) -> list[tuple[int, int, int]]:
        """Return (rank, pid, exit code or negative signal) of the processes that ended since the last call."""
        with self._lock:
            found, self._ends = self._ends, []
        return found

    def listen(self, driver: Driver) -> None:
        """Hear everything until the end."""
        for line in sys.stdin:
            self._hear(json.loads(line), driver)
            driver.wake()
        self.wanted = False
        driver.wake()

    def _hear(self, said: Mapping[str, Any], driver: Driver) -> None:
        kind = said["type"]
        with self._lock:
            if kind == "hosts":
                self._offered = {str(host): int(slots) for host, slots in said["hosts"].items()}
            elif kind == "lost":
                self.lost = {**self.lost, str(said["host"]): str(said["says"])}
            elif kind == "back":
                self.lost = {host: why for host, why in self.lost.items() if host != said["host"]}
            elif kind == "ended":
                self._ends.append((int(said["rank"]), int(said["pid"]), int(said["code"])))
        if kind == "cancel":
            driver.cancel()


class FarStaff(Staff):
    """Processes that others start and end."""

    def __init__(self, words: Words, report: Report) -> None:
        super().__init__()
        self._words = words
        self._report = report

    def start(self, number: int, more: Mapping[str, str]) -> None:
        """Have the process of a rank started."""
        self._words.order("start", rank=number, environment=dict(more))

    def ended(self) -> list[tuple[int, int, int]]:
        """Return those that ended since the last call."""
        found = self._report.ends()
        for number, *_ in found:
            self.forget(number)
        return found

    def signal(self, number: int, name: Literal["TERM", "KILL"]) -> None:
        """Have the process of a rank signalled."""
        self._words.order("signal", rank=number, name=name)

    def kill(self) -> None:
        """Do nothing: who is not there to be told has lost the agents too, and they end what they started."""


if __name__ == "__main__":
    sys.exit(main())

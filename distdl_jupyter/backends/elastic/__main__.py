"""A program: leads the processes of an elastic Horovod job, on the first of its nodes.

``python -m distdl_jupyter.backends.elastic ADDRESS PORT LEAST SECONDS`` serves the meeting on ADDRESS. LEAST is the
smallest number of processes, SECONDS how long they may take to meet. It starts nothing itself: on its standard output
it says what is to be done and how ranks end (``words``), on its standard input it reads what became of that
(``clusters.elastic_run`` is the other side), one JSON line each:

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
from typing import Any

from distdl_jupyter.backends.elastic.driver import Driver, Terms
from distdl_jupyter.backends.elastic.meeting import Meeting
from distdl_jupyter.backends.elastic.words import Words
from distdl_jupyter.backends.elastic.workers import Workers
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
    driver = Driver(seats, Terms.of(least, patience), Workers(words, report.ends), words)
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


if __name__ == "__main__":
    sys.exit(main())

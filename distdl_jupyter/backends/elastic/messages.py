"""Messages between the driver of an elastic job and the job's supervisor: one JSON object a line.

The driver reads on its standard input (``clusters.agents.elastic_run`` is the other side):

* ``slots`` comes first: ``[[host, local rank], ...]`` of all ranks.
* ``hosts``: the hosts that may run processes now, ``{host: slots}``.
* ``lost`` and ``back``: a ``host`` that failed, with the ``reason`` as a sentence, or answers again.
* ``exit``: the process ``pid`` of a ``rank`` has ended with ``code``, or by ``signal``.
* ``cancel``: the job is being ended; processes that end are not replaced.

When its input ends, the supervisor is gone. It writes on its standard output:

* ``start`` a process of ``rank`` with ``environment``; ``signal`` that of ``rank`` with ``name``.
* ``ended``: the final exit of ``rank``, with ``code``, ``signal`` and ``evidence``.
* ``replaced``: the process ``pid`` of ``rank`` failed, and another one takes its place; same fields.
* ``left``: the process ``pid`` of ``rank`` is gone, and the others go on without it; same fields.
* ``note``: ``level``, ``text`` and ``code`` of a sentence for the user.
* ``gave-up``: the ``text`` that says why the job ends although no process has failed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

from distdl_jupyter.backends.elastic.slots import Slot


class ProcessExit(NamedTuple):
    """How a process ended; neither ``code`` nor ``signal`` when it is not known."""

    code: int | None = None
    signal: str | None = None


class Supervisor:
    """The job's supervisor: writes messages to ``output``, and keeps what came on ``source``."""

    def __init__(self, output: int, source: TextIO) -> None:
        self._output = output
        self._source = source
        self._lock = threading.Lock()
        self._offered: dict[str, int] = {}
        self._exits: list[tuple[int, int, ProcessExit]] = []
        #: Why hosts are gone that host discovery still offers, each one sentence.
        self.lost: dict[str, str] = {}
        self.connected = True
        self.canceled = False

    # reading ----------------------------------------------------------------------------------

    def read_slots(self) -> list[Slot]:
        """Read the first message: the job's slots, all empty."""
        found = json.loads(self._source.readline())["slots"]
        return [Slot(number, str(host), int(local_rank)) for number, (host, local_rank) in enumerate(found)]

    def listen(self, wake: Callable[[], None]) -> None:
        """Take all other messages until the end, and call ``wake`` after each."""
        for line in self._source:
            self._take(json.loads(line))
            wake()
        self.connected = False
        wake()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            match message["type"]:
                case "hosts":
                    self._offered = {str(host): int(slots) for host, slots in message["hosts"].items()}
                case "lost":
                    self.lost = {**self.lost, str(message["host"]): str(message["reason"])}
                case "back":
                    self.lost = {host: why for host, why in self.lost.items() if host != message["host"]}
                case "exit":
                    found = ProcessExit(message["code"], message["signal"])
                    self._exits.append((int(message["rank"]), int(message["pid"]), found))
                case "cancel":
                    self.canceled = True

    @property
    def hosts(self) -> Mapping[str, int]:
        """How many processes each host may run now."""
        with self._lock:
            return {host: slots for host, slots in self._offered.items() if host not in self.lost}

    def exits(self) -> list[tuple[int, int, ProcessExit]]:
        """Return (rank, pid, exit) of the processes that ended since the last call."""
        with self._lock:
            found, self._exits = self._exits, []
        return found

    # writing ----------------------------------------------------------------------------------

    def start(self, rank: int, environment: Mapping[str, str]) -> None:
        """Have the process of a rank started with these variables besides its own."""
        self._send("start", rank=rank, environment=dict(environment))

    def signal(self, rank: int, name: str) -> None:
        """Have the process of a rank signalled."""
        self._send("signal", rank=rank, name=name)

    def ended(self, rank: int, exit_: ProcessExit, evidence: str = "") -> None:
        """Report the final exit of a rank."""
        self._send("ended", rank=rank, **exit_._asdict(), evidence=evidence)

    def replaced(self, rank: int, pid: int, exit_: ProcessExit) -> None:
        """Report that a rank's process failed and another one takes its place."""
        self._send("replaced", rank=rank, pid=pid, **exit_._asdict(), evidence="")

    def left(self, rank: int, pid: int, evidence: str) -> None:
        """Report that a rank's process is gone and the others go on without it."""
        self._send("left", rank=rank, pid=pid, **ProcessExit()._asdict(), evidence=evidence)

    def gave_up(self, text: str) -> None:
        """Report why the job ends although no process has failed."""
        self._send("gave-up", text=text)

    def note(self, level: str, text: str, code: str) -> None:
        """Send a sentence for the user."""
        self._send("note", level=level, text=text, code=code)

    def _send(self, type_: str, **fields: Any) -> None:
        os.write(self._output, json.dumps({"type": type_, **fields}).encode() + b"\n")

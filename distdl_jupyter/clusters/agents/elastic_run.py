"""A started elastic job: ranks are started, ended and replaced by the agents as the job's driver requests.

The driver runs on node 0, where the ranks meet (``distdl_jupyter.backends.elastic``, ``messages``). It is sent the
exits of processes and the hosts that there are, are lost and are back. Without node 0 the job ends: with it goes the
driver, which alone knows the state of the others.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents.run import LAUNCHER, SERVICES, START_SECONDS, AgentRun, Event
from distdl_jupyter.clusters.base import Exit, Gone

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.agents.agent import AgentConnection, Node
    from distdl_jupyter.core.plan import Launcher, RankSlot

#: The exit of a process that could not be started.
_NOT_STARTED = {"code": 255, "signal": None}


class ElasticRun(AgentRun):
    """Ranks come and go; each has one final exit."""

    replaces = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places = {place.rank: place for place in self._placement.ranks}
        #: Ranks without a final exit.
        self._open = set(self._places)
        self._gone: list[Gone] = []
        self._gave_up = ""
        #: The processes of ranks that live, and the evidence of the last exits.
        self._pids: dict[int, int] = {}
        self._evidences: dict[int, str] = {}
        self._noted = False
        #: Whether the driver is gone with node 0.
        self._driver_lost = False
        self._discovery = HostDiscovery(
            self._launcher.discovery,
            Counter(place.host for place in self._placement.ranks),
            self._send_hosts,
            functools.partial(self.add_notice, "warning", code="host-discovery"),
        )
        self._driver = _DriverInput(self._nodes.nodes[0].connection)

    @property
    def _launcher(self) -> Launcher:
        assert self._plan.launcher is not None, "an elastic job has a driver"
        return self._plan.launcher

    # start ------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        first = self._nodes.nodes[0]
        err, pipe = first.connection.pipe()
        self._listen(None, "err", pipe)
        process = {
            "process": LAUNCHER,
            "argv": list(self._launcher.argv),
            "python": first.python,
            "environment": self._nodes.environment(first),
            "directory": first.directory or None,
            "out": first.connection.channel(_MessageReader(self._on_message)),
            "err": err,
            "open_input": True,
        }
        first.connection.ask("start", START_SECONDS, self.progress("starting the launcher"), processes=[process])
        self._driver.send(slots=[(place.host, place.local_rank) for place in self._places.values()])
        self._discovery.start()

    def _send_hosts(self) -> None:
        self._driver.send(type="hosts", hosts=self._discovery.hosts)

    # messages of the driver, on the connection's own thread where it has one ------------------------

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "start":
            self._start(self._places[int(message["rank"])], message["environment"])
        elif message["type"] == "signal":
            rank = int(message["rank"])
            self._nodes.of(self._places[rank]).connection.begin("signal", name=str(message["name"]), to=[rank])
        else:
            self._events.put(Event(self._nodes.nodes[0], {"type": "message", "message": message}))

    def _start(self, place: RankSlot, more: Mapping[str, str]) -> None:
        node = self._nodes.of(place)
        answer = node.connection.begin("start", processes=[self.rank_process(place, more)])
        answer.add_done_callback(lambda answer: self._on_started(node, place.rank, answer))

    def _on_started(self, node: Node, rank: int, answer: Future[dict[str, Any]]) -> None:
        """Note the process before anything else of it: the same thread takes both in."""
        if (error := answer.exception()) is not None:
            reason = str(getattr(error, "says", error))
            self._events.put(Event(node, {"type": "not-started", "rank": rank, "reason": reason}))
        else:
            if not self._noted:
                self._noted = True
                self._nodes.note_start()
            (self._pids[rank],) = map(int, answer.result()["pids"].values())

    # watch ------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        kind = event.data["type"]
        if kind == "message":
            self._take_message(event.data["message"])
        elif kind == "not-started":
            rank = int(event.data["rank"])
            self.add_notice("warning", f"Rank {rank} could not be started: {event.data['reason']}", "not-started")
            self._report_exit(rank, _NOT_STARTED)
        elif kind == "back":
            self._take_back(event.node)
        elif kind == "lost":
            self._lose(event.node, str(event.data["says"]))
        else:
            super()._take(event)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        """Take what the driver reports of a rank or of the job (``distdl_jupyter.backends.elastic.messages``)."""
        kind = message["type"]
        if kind == "note":
            self.add_notice(message["level"], message["text"], message["code"])
        elif kind == "gave-up":
            self._gave_up = message["text"]
        elif kind == "ended":
            self._end(self._exit(message))
        else:
            self._gone.append(Gone(self._exit(message), message["pid"], replaced=kind == "replaced"))

    def _exit(self, message: Mapping[str, Any]) -> Exit:
        killed = message["signal"] == "KILL"
        evidence = message["evidence"] or (self._evidences.get(message["rank"], "") if killed else "")
        return Exit(message["rank"], message["code"], message["signal"], evidence)

    def _end(self, exit_: Exit) -> None:
        self._open.discard(exit_.rank)
        self.ended(exit_)

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        number = int(end["process"])
        if number == LAUNCHER:
            how = f"ended with code {end['code']}" if end["signal"] is None else f"was ended by SIG{end['signal']}"
            for rank in sorted(self._open):  # those of which the driver has reported no exit
                self._end(Exit(rank, None, None, f"The driver of the elastic job {how}."))
        elif number < SERVICES:
            # What it has started itself would live on beside its successor.
            node.connection.begin("signal", name="KILL", to=[number])
            self._evidences[number] = str(end.get("evidence") or "")
            self._report_exit(number, end)

    def _report_exit(self, rank: int, end: Mapping[str, Any]) -> None:
        pid = self._pids.pop(rank, 0)
        if self._driver_lost:
            self.ended(Exit(rank, None, "TERM", "stopped"))
        else:
            self._driver.send(type="exit", rank=rank, pid=pid, code=end["code"], signal=end["signal"])

    # hosts that go and come -----------------------------------------------------------------------

    def _lose(self, node: Node, reason: str) -> None:
        if node is self._nodes.nodes[0]:
            self._lose_driver(reason)
            return
        if node not in self._nodes.nodes:  # it is back already
            return
        self._driver.send(type="lost", host=node.host, reason=reason)
        for rank in [place.rank for place in self.places(node) if place.rank in self._pids]:
            self._report_exit(rank, _NOT_STARTED)
        if self._context.staging is None:  # a host that comes back has none of the data any more
            self._nodes.await_return(node, self._returned)

    def _lose_driver(self, reason: str) -> None:
        self._driver_lost = True
        lost = {place.rank for place in self.places(self._nodes.nodes[0])}
        for rank in sorted(self._open):
            if rank in lost:
                self.ended(Exit(rank, None, None, reason))
            elif rank not in self._pids:
                self.ended(Exit(rank, None, "TERM", "stopped"))
        self._open.clear()

    def _returned(self, node: Node) -> None:
        self._events.put(Event(node, {"type": "back"}))

    def _take_back(self, node: Node) -> None:
        if node.connection.lost:
            self._nodes.await_return(node, self._returned)
            return
        at = next(number for number, one in enumerate(self._nodes.nodes) if one.host == node.host)
        self._nodes.nodes[at] = node
        self._listen_to(node)
        self._driver.send(type="back", host=node.host)

    # what the job asks ------------------------------------------------------------------------

    def gone(self) -> list[Gone]:
        """Return the processes that ended since the last call while the job goes on."""
        found, self._gone = self._gone, []
        return found

    def gave_up(self) -> str:
        """Return why the driver has ended the job although no rank had failed."""
        return self._gave_up

    def signal(self, name: str) -> None:
        """Notify the driver first: it would take the exits of its ranks for failures."""
        if not self._driver_lost:
            self._driver.send(type="cancel")
        super().signal(name)

    def close(self) -> None:
        """Stop host discovery, and end the agents."""
        self._discovery.stop()
        super().close()


class _MessageReader:
    """Takes bytes of a channel and calls ``take`` with the JSON of each line."""

    def __init__(self, take: Callable[[Mapping[str, Any]], None]) -> None:
        self._take = take
        self._partial = b""

    def __call__(self, content: bytes) -> None:
        *lines, self._partial = (self._partial + content).split(b"\n")
        for line in lines:
            self._take(json.loads(line))


class _DriverInput:
    """JSON lines for the driver's standard input, one request after the other, so that their order stays."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = ""
        self._sending = False

    def send(self, **fields: Any) -> None:
        """Send a message without waiting."""
        with self._lock:
            self._unsent += json.dumps(fields) + "\n"
        self._send_next()

    def _send_next(self) -> None:
        with self._lock:
            if self._sending or not self._unsent:
                return
            text, self._unsent, self._sending = self._unsent, "", True
        answer = self._connection.begin("feed", process=LAUNCHER, text=text)
        answer.add_done_callback(self._sent)

    def _sent(self, _answer: object) -> None:
        with self._lock:
            self._sending = False
        self._send_next()


# which hosts there are now -------------------------------------------------------------------------

#: Seconds between two looks, and those that a script may take.
_EVERY = 1.0
_SCRIPT_SECONDS = 30.0


def parse_hosts(text: str, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return {host: slots} of the hosts that the job knows; a host without a number offers all of its places.

    Raises ValueError naming the line that cannot be read.
    """
    found = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        host, _, slots = line.partition(":")
        if slots and not slots.strip().isdigit():
            raise ValueError(f"the line {line!r} does not have the form HOST:SLOTS")
        if host in capacity:
            found[host] = min(int(slots), capacity[host]) if slots else capacity[host]
    return found


def current_hosts(discovery: str, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the hosts of now; without a ``discovery`` all of them. Raises OSError, ValueError."""
    if not discovery:
        return dict(capacity)
    path = Path(discovery)
    return parse_hosts(_printed(path) if os.access(path, os.X_OK) else path.read_text(encoding="utf-8"), capacity)


def _printed(script: Path) -> str:
    try:
        done = subprocess.run([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=_SCRIPT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(f"it took longer than {_SCRIPT_SECONDS:g} s") from None
    if done.returncode != 0:
        raise ValueError(f"it ended with code {done.returncode}")
    return done.stdout


class HostDiscovery:
    """Looks every second in a thread, so that a slow script holds up no message."""

    def __init__(
        self,
        discovery: str,
        capacity: Mapping[str, int],
        changed: Callable[[], None],
        complain: Callable[[str], object],
    ) -> None:
        self._discovery = discovery
        self._capacity = capacity
        self._changed = changed
        self._complain = complain
        self._problem = ""
        self._stop = threading.Event()
        #: The hosts as they were seen last; a look that failed changes nothing.
        self.hosts: dict[str, int] = {}

    def start(self) -> None:
        """Look once, then every second where that can change anything."""
        self._look()
        if self._discovery:
            threading.Thread(target=self._run, name="host-discovery", daemon=True).start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        before, problem = self.hosts, ""
        try:
            self.hosts = current_hosts(self._discovery, self._capacity)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._complain(f"Cannot read the hosts from {self._discovery}: {problem}. The job keeps its current hosts.")
        self._problem = problem
        if self.hosts != before:
            self._changed()

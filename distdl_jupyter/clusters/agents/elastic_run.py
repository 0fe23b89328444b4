"""A started elastic job: ranks are started, ended and replaced as the program that leads them orders.

That program runs on node 0, where the ranks meet (``distdl_jupyter.backends.elastic``). What it orders the agents do,
and it is told what became of it, which hosts there are, which are lost and which are back. Node 0 itself cannot be
lost: with it goes the program that knows the others.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents.run import LAUNCHER, SERVICES, START_SECONDS, AgentRun, Event
from distdl_jupyter.clusters.base import Exit, Gone
from distdl_jupyter.host.discovery import Watch
from distdl_jupyter.host.processes import signal_name, signal_number

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.agents.agent import AgentConnection, Node
    from distdl_jupyter.core.plan import Launcher, RankPlace

#: The exit code of a process that could not be started.
_NOT_STARTED = 255


class ElasticRun(AgentRun):
    """Ranks come and go; each exits once for good."""

    replaces = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places = {place.rank: place for place in self._placement.ranks}
        #: Ranks that have not ended for good.
        self._open = set(self._places)
        self._gone: list[Gone] = []
        self._gave_up = ""
        #: The processes of ranks that live, and the evidence of the last ends.
        self._pids: dict[int, int] = {}
        self._evidences: dict[int, str] = {}
        self._noted = False
        #: Why node 0 is gone; the others are watched without their leader then.
        self._leaderless = ""
        self._watch = Watch(
            self._leader.discovery,
            Counter(place.host for place in self._placement.ranks),
            self._tell_hosts,
            functools.partial(self.remark, "warning", code="host-discovery"),
        )
        self._letters = _Letters(self._nodes.nodes[0].connection)

    @property
    def _leader(self) -> Launcher:
        assert self._plan.launcher is not None, "an elastic job has a program that leads it"
        return self._plan.launcher

    # start ------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        first = self._nodes.nodes[0]
        err, pipe = first.connection.pipe()
        self._listen(None, "err", pipe)
        process = {
            "process": LAUNCHER,
            "argv": list(self._leader.argv),
            "environment": self._nodes.environment(first),
            "directory": first.directory or None,
            "out": first.connection.channel(_Lines(self._obey)),
            "err": err,
            "open_input": True,
        }
        first.connection.ask("start", START_SECONDS, self.heed("starting the launcher"), processes=[process])
        self._letters.send(seats=[(place.host, place.local_rank) for place in self._places.values()])
        self._watch.start()

    def _tell_hosts(self) -> None:
        self._letters.send(type="hosts", hosts=self._watch.hosts)

    # orders, on the connection's own thread where it has one ----------------------------------------

    def _obey(self, order: Mapping[str, Any]) -> None:
        if order["type"] == "start":
            self._start(self._places[int(order["rank"])], order["environment"])
        elif order["type"] == "signal":
            rank = int(order["rank"])
            self._nodes.of(self._places[rank]).connection.begin("signal", name=str(order["name"]), to=[rank])
        else:
            self._events.put(Event(self._nodes.nodes[0], {"type": "said", "said": order}))

    def _start(self, place: RankPlace, more: Mapping[str, str]) -> None:
        node = self._nodes.of(place)
        answer = node.connection.begin("start", processes=[self.rank_process(place, more)])
        answer.add_done_callback(lambda answer: self._began(node, place.rank, answer))

    def _began(self, node: Node, rank: int, answer: Future[dict[str, Any]]) -> None:
        """Take a start before anything else of that process: the same thread takes both in."""
        if (error := answer.exception()) is not None:
            says = str(getattr(error, "says", error))
            self._events.put(Event(node, {"type": "not-started", "rank": rank, "says": says}))
        else:
            if not self._noted:
                self._noted = True
                self._nodes.note_start()
            (self._pids[rank],) = map(int, answer.result()["pids"].values())

    # watch ------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        kind = event.data["type"]
        if kind == "said":
            self._take_word(event.data["said"])
        elif kind == "not-started":
            rank = int(event.data["rank"])
            self.remark("warning", f"Rank {rank} could not be started: {event.data['says']}", "not-started")
            self._tell_end(rank, _NOT_STARTED)
        elif kind == "back":
            self._take_back(event.node)
        elif kind == "lost":
            self._lost(event.node, str(event.data["says"]))
        else:
            super()._take(event)

    def _take_word(self, said: Mapping[str, Any]) -> None:
        """Take what the leader said of a rank or of the job (see ``distdl_jupyter.backends.elastic.words``)."""
        kind = said["type"]
        if kind == "note":
            self.remark(said["level"], said["text"], said["code"])
        elif kind == "gave-up":
            self._gave_up = said["text"]
        elif kind == "ended":
            self._end(self._exit(said))
        else:
            self._gone.append(Gone(self._exit(said), said["pid"], replaced=kind == "replaced"))

    def _exit(self, said: Mapping[str, Any]) -> Exit:
        killed = said["signal"] == "KILL"
        evidence = said["evidence"] or (self._evidences.get(said["rank"], "") if killed else "")
        return Exit(said["rank"], said["code"], said["signal"], evidence)

    def _end(self, exit_: Exit) -> None:
        self._open.discard(exit_.rank)
        self.ended(exit_)

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        number = int(end["process"])
        if number == LAUNCHER:
            self._leader_ended(_code(end))
        elif number < SERVICES:
            # What it has started itself would live on beside its successor.
            node.connection.begin("signal", name="KILL", to=[number])
            self._evidences[number] = str(end.get("evidence") or "")
            self._tell_end(number, _code(end))

    def _leader_ended(self, code: int) -> None:
        """Take all ranks that the leader did not speak of as ended with it."""
        how = f"was ended by SIG{signal_name(-code)}" if code < 0 else f"ended with code {code}"
        for rank in sorted(self._open):
            self._end(Exit(rank, None, None, f"The program that leads the elastic job {how}."))

    def _tell_end(self, rank: int, code: int) -> None:
        pid = self._pids.pop(rank, 0)
        if self._leaderless:
            self.ended(Exit(rank, None, "TERM", "stopped"))
        else:
            self._letters.send(type="ended", rank=rank, pid=pid, code=code)

    # hosts that go and come -----------------------------------------------------------------------

    def _lost(self, node: Node, says: str) -> None:
        if node is self._nodes.nodes[0]:
            self._lose_leader(says)
            return
        if node not in self._nodes.nodes:  # it is back already
            return
        self._letters.send(type="lost", host=node.host, says=says)
        for rank in [place.rank for place in self.places(node) if place.rank in self._pids]:
            self._tell_end(rank, _NOT_STARTED)
        if self._context.staging is None:  # a host that comes back has none of the data any more
            self._nodes.await_return(node, self._returned)

    def _lose_leader(self, says: str) -> None:
        self._leaderless = says
        lost = {place.rank for place in self.places(self._nodes.nodes[0])}
        for rank in sorted(self._open):
            if rank in lost:
                self.ended(Exit(rank, None, None, says))
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
        self._letters.send(type="back", host=node.host)

    # what the job asks ------------------------------------------------------------------------

    def gone(self) -> list[Gone]:
        """Return the processes that ended since the last call while the job goes on."""
        found, self._gone = self._gone, []
        return found

    def gave_up(self) -> str:
        """Return why the leader has ended the job although no rank had failed."""
        return self._gave_up

    def signal(self, name: str) -> None:
        """Let the leader know first: it would take the ends of its ranks for failures."""
        if not self._leaderless:
            self._letters.send(type="cancel")
        super().signal(name)

    def close(self) -> None:
        """Look for no host any more, and end the agents."""
        self._watch.stop()
        super().close()


class _Lines:
    """Takes bytes of a channel and gives each line's JSON to ``take``."""

    def __init__(self, take: Callable[[Mapping[str, Any]], None]) -> None:
        self._take = take
        self._half = b""

    def __call__(self, content: bytes) -> None:
        *lines, self._half = (self._half + content).split(b"\n")
        for line in lines:
            self._take(json.loads(line))


class _Letters:
    """JSON lines for the standard input of the leader, one request after the other, so that their order stays."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = ""
        self._sending = False

    def send(self, **fields: Any) -> None:
        """Send a line without waiting."""
        with self._lock:
            self._unsent += json.dumps(fields) + "\n"
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if self._sending or not self._unsent:
                return
            text, self._unsent, self._sending = self._unsent, "", True
        answer = self._connection.begin("feed", process=LAUNCHER, text=text)
        answer.add_done_callback(self._sent)

    def _sent(self, _answer: object) -> None:
        with self._lock:
            self._sending = False
        self._go_on()


def _code(end: Mapping[str, Any]) -> int:
    """Return a process's exit code, negative for a signal."""
    if end["code"] is not None:
        return int(end["code"])
    return -signal_number(str(end["signal"]))

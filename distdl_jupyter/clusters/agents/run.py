"""A started job whose nodes have agents: services, streams, signals, the ends of ranks, whatever machine they are on.

``DirectRun`` lets the agents start the ranks, so that each end is known exactly; ``launch`` has the run whose ranks a
program such as ``mpirun`` starts. Nothing waits for a machine that does not respond: it is lost after some seconds, its
ranks with it, and its agent ends them there by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.clusters import identity
from distdl_jupyter.clusters.agents.agent import ANSWER_SECONDS, HostFailed
from distdl_jupyter.clusters.base import Exit, NodeSample, Notice, Run, Start, Stream, Unkillable
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node.frames import BrokenWire
from distdl_jupyter.worker.serving.connection import NOTES, note_of, write_note

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Node, Nodes, PipeReader
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.agents.rank_relay import RankRelay
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement, Plan, RankSlot, Service
    from distdl_jupyter.node.stacks import Answer

#: Numbers of processes that are no ranks, as agents know them.
SERVICES, LAUNCHER, SHELLS = 1_000_000, 1_100_000, 1_200_000
WORKER = ("{python}", "-P", "-m", "distdl_jupyter.worker")
_SERVICE_SECONDS = 60.0
#: Seconds in which a machine must have started the processes of one request.
START_SECONDS = 60.0
#: Ranks that one machine is asked to start at once; in between the start may be stopped.
_AT_ONCE = 8
_WARNED = ("The job will be stopped soon by its time limit or for another job. Ranks were asked to save a checkpoint "
           "(should_checkpoint(), SIGUSR1).")  # fmt: skip
#: Seconds between two calls while a service starts.
_POLL_SECONDS = 0.5
#: Living processes of a machine that are counted; more make no difference.
_MOST_COUNTED = 10_000


class Event(NamedTuple):
    """What an agent sent unasked."""

    node: Node
    data: dict[str, Any]


class AgentRun(Run):
    """What all kinds of start share."""

    def __init__(self, placement: Placement, plan: Plan, context: Context, nodes: Nodes[Any]) -> None:
        self._placement = placement
        self._plan = plan
        self._context = context
        self._nodes = nodes
        self._streams: list[Stream] = []
        #: The channels that another supervisor would open again: node, channel, rank (None: the launcher), stream.
        self._channels: list[tuple[int, int, int | None, str]] = []
        self._readers: dict[int | None, list[PipeReader]] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._exits: list[Exit] = []
        self._ended: set[int] = set()
        self._started: list[Start] = []
        self._notices: list[Notice] = []
        self._samples: list[NodeSample] = []
        self._warned = False
        self._served: set[int] = set()
        self._rank_relay: RankRelay | None = None
        #: What has failed on another thread.
        self._failure: LaunchFailed | None = None

    # start ------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start services, then ranks. Raises LaunchFailed; nothing is left running then."""
        try:
            for node in self._nodes.nodes:
                self._listen_to(node)
            for number, service in enumerate(self._plan.services):
                self._start_service(number, service)
            self._start_ranks()
        except OSError as error:
            self.close()
            raise limits.launch_failed("The ranks could not be started", error) from error
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _start_ranks(self) -> None: ...

    def _listen_to(self, node: Node) -> None:
        node.connection.on_event = lambda data: self._on_event(node, data)
        if node.connection.lost:  # before anybody listened
            raise HostFailed(node.host, node.connection.lost, code="host-lost")

    def _on_event(self, node: Node, data: dict[str, Any]) -> None:
        """Take an event, on the connection's own thread where it has one. Raises BrokenWire for another node's rank."""
        self._check_owner(node, data)
        self._events.put(Event(node, data))

    def _check_owner(self, node: Node, data: Mapping[str, Any]) -> None:
        """Raise BrokenWire where an agent reports of what another node runs."""
        if data["type"] == "exit":
            numbers = [int(data["process"])]
        elif data["type"] == "resources":
            numbers = [int(rank) for sample in data["samples"] for rank in sample["ranks"]]
        else:
            return
        for number in numbers:
            if number < SERVICES and not self._is_on(node, number):
                raise BrokenWire(f"The agent reported rank {number}, which does not run on this host.")
            # Services and the launcher run on the first node; the data program (above them) runs on every node.
            if SERVICES <= number <= LAUNCHER and node is not self._nodes.nodes[0]:
                raise BrokenWire(f"The agent reported process {number}, which does not run on this host.")

    def _is_on(self, node: Node, rank: int) -> bool:
        ranks = self._placement.ranks
        return rank < len(ranks) and self._nodes.of(ranks[rank]) is node

    def _start_service(self, number: int, service: Service) -> None:
        node = self._nodes.nodes[0]
        channel, pipe = node.connection.pipe()
        self._listen(None, "out", pipe)
        process = {
            "process": SERVICES + number,
            "argv": ["{python}", *service.arguments],
            "python": node.python,
            "environment": self._nodes.environment(node) | self._nodes.of_service(number),
            "directory": None,
            "out": channel,
            "open_input": True,
        }
        node.connection.ask("start", START_SECONDS, self.progress(f"starting {service.name}"), processes=[process])
        said = _await_line(pipe.reader, service.ready, _SERVICE_SECONDS, self.progress(f"waiting for {service.name}"))
        if service.ready not in said:
            where = f" on {node.host}" if node.host else ""
            raise LaunchFailed(
                f"{service.name} did not start{where}.", code="service-not-started", output=said.strip()[-2000:]
            )

    def progress(self, doing: str) -> Callable[[], None]:
        """Return what says what is being done, and raises when the start is to be stopped."""
        return lambda: self._context.report("start", doing)

    def _listen(self, rank: int | None, name: str, pipe: PipeReader, start: int | None = None) -> None:
        """Add a stream to those that are read."""
        os.set_blocking(pipe.reader, False)
        self._streams.append(Stream(pipe.reader, rank, name, start))
        self._readers.setdefault(rank, []).append(pipe)

    def channel(self, node: Node, rank: int | None, name: str) -> int:
        """Open a stream of a rank, or of the launcher, and return its channel."""
        channel, pipe = node.connection.pipe()
        self._listen(rank, name, pipe, 0 if self._nodes.outlive_supervisor else None)
        self._channels.append((self._nodes.nodes.index(node), channel, rank, name))
        return channel

    def channels(self, node: Node, rank: int) -> dict[str, int]:
        """Open a rank's two streams and return their channels."""
        return {name: self.channel(node, rank, name) for name in ("out", "err")}

    def reopen(self, channels: Sequence[Sequence[Any]], read: Mapping[tuple[int, str], int]) -> None:
        """Go on with ranks that an earlier supervisor has started (see ``Cluster.attach``)."""
        for at, channel, rank, name in channels:
            start = read.get((-1, "sys") if rank is None else (rank, name), 0)
            self._listen(rank, name, self._nodes.nodes[at].connection.reopen(channel, start), start)
            self._channels.append((at, channel, rank, name))
        for node in self._nodes.nodes:
            self._listen_to(node)

    def rank_environment(self, place: RankSlot) -> dict[str, str]:
        """Return what one rank has besides the environment of its node."""
        variables = {**self._plan.environments[place.rank], **identity.variables(self._placement, place)}
        return self._nodes.of_rank(place, variables)

    def rank_process(self, place: RankSlot) -> dict[str, Any]:
        """Return the process of a rank, as agents start it."""
        node = self._nodes.of(place)
        return {
            "process": place.rank,
            "argv": WORKER,
            "python": node.python,
            "environment": {**self._nodes.environment(node), **self.rank_environment(place)},
            "directory": node.directory or None,
            **self.channels(node, place.rank),
        }

    def places(self, node: Node) -> list[RankSlot]:
        """Return the ranks of a machine."""
        return [place for place in self._placement.ranks if self._nodes.of(place) is node]

    # watch ------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All descriptors of ranks, launcher and services, and what else is printed on the nodes."""
        return (*self._streams, *self._nodes.streams)

    def started(self) -> list[Start]:
        """Return every rank's process, as its machine counts them."""
        return list(self._started)

    def add_notice(self, level: Any, text: str, code: str = "") -> None:
        """Keep a sentence for the user."""
        self._notices.append(Notice(level, text, code))

    def notices(self) -> list[Notice]:
        """Return what the user should read since the last call."""
        found = [*self._nodes.notices, *self._notices]
        self._nodes.notices, self._notices = [], []
        return found

    def poll(self) -> list[Exit]:
        """Return the exits since the last call, each when all that its rank has said can be read.

        Raises LaunchFailed where no kernel could ever speak to a rank that stays.
        """
        if self._failure is not None:
            raise self._failure
        self._nodes.poll()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._events.get_nowait())
        self._look()
        said = [exit_ for exit_ in self._exits if self.said_all(exit_.rank)]
        found = {exit_.rank: explained for exit_ in said if (explained := self._nodes.explained(exit_)) is not None}
        self._exits = [exit_ for exit_ in self._exits if exit_.rank not in found]
        return list(found.values())

    def _take(self, event: Event) -> None:
        if event.data["type"] == "exit":
            self._process_ended(event.node, event.data)
        elif event.data["type"] == "lost":
            for place in self.places(event.node):
                self.ended(Exit(place.rank, None, None, str(event.data["says"])))
        elif event.data["type"] == "warned":
            if not self._warned:
                self.add_notice("warning", _WARNED, "ends-soon")
            self._warned = True
        elif event.data["type"] == "resources":
            at = self._nodes.nodes.index(event.node) if event.node in self._nodes.nodes else 0
            self._samples += [NodeSample(at, one) for one in event.data["samples"]]

    def keep_slots(self) -> None:
        """Keep the entries of the machines' queues."""
        self._nodes.keep_slots()

    def samples(self) -> list[NodeSample]:
        """Return what ranks and machines have used since the last call."""
        found, self._samples = self._samples, []
        return found

    @abstractmethod
    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        """Take the end of a process that an agent had started."""

    def _look(self) -> None:
        """Look at what no event tells."""

    def ended(self, exit_: Exit) -> None:
        """Note the end of a rank; the first one counts."""
        if exit_.rank not in self._ended:
            self._ended.add(exit_.rank)
            self._exits.append(exit_)

    def said_all(self, rank: int | None) -> bool:
        """Say whether nothing waits for whoever reads a rank's streams but what is in the pipes."""
        return all(pipe.pending == 0 for pipe in self._readers.get(rank, ()))

    def alive(self) -> list[str]:
        """Return the machine of every living process; one that is lost has none."""
        return [
            node.host for node, found in self._ask_all("alive") for _ in range(min(int(found["alive"]), _MOST_COUNTED))
        ]

    def unkillable(self) -> list[Unkillable]:
        """Return them, as far as machines answer."""
        return [Unkillable(node.host, int(pid)) for node, found in self._ask_all("stuck") for pid in found["pids"]]

    def _ask_all(self, type_: str) -> list[tuple[Node, dict[str, Any]]]:
        """Ask all machines at the same time and return the answers that came."""
        answers = [(node, node.connection.begin(type_)) for node in self._nodes.connected]
        found = []
        for node, answer in answers:
            with contextlib.suppress(HostFailed), node.connection.hurried():
                found.append((node, node.connection.result(answer, type_, ANSWER_SECONDS)))
        return found

    def signal(self, name: str) -> None:
        """INT goes to the ranks with what they started; TERM and KILL to everything. Nobody waits for an answer."""
        for node in self._nodes.connected:
            node.connection.begin("signal", name=name, to="ranks" if name == "INT" else "all")
        self._nodes.signaled(name)

    def on_launcher_output(self, text: str) -> None:
        """Take what was printed by no rank."""
        self._nodes.on_launcher_output(text)

    def ask_stacks(self) -> None:
        """Let every machine ask its ranks."""
        for node in self._nodes.nodes:
            node.connection.ask_stacks([place.rank for place in self.places(node)])

    def stacks(self) -> Mapping[int, Answer]:
        """Return what ranks have answered since the last call."""
        return {
            rank: answer
            for node in self._nodes.nodes
            for rank, answer in node.connection.stacks().items()
            if self._is_on(node, rank)
        }

    def no_stacks(self) -> str:
        """Return "": ranks that an agent watches can be asked."""
        return ""

    def ask_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Let every machine leave the request for its ranks."""
        for node in self._nodes.connected:
            if own := [place.rank for place in self.places(node) if place.rank in ranks]:
                node.connection.begin("profile", ranks=own, recording=dict(request))

    def serve(self, rank: int) -> None:
        """Write where the rank is met: at its own socket on this machine, else at one that leads there."""
        node = self._nodes.of(self._placement.ranks[rank])
        self._served.add(rank)
        answer = node.connection.begin("serving", rank=rank)
        try:
            if node.host:
                self._lead_to(node.connection, rank, answer)
            else:
                with contextlib.suppress(HostFailed):  # the rank has ended, which is told elsewhere
                    write_note(note_of(self._context.folder.path / NOTES, rank), answer.result())
        except OSError as error:
            raise _unserved(rank, error) from error

    def _lead_to(self, connection: Connection, rank: int, answer: Future[dict[str, Any]]) -> None:
        """Let a socket here lead to a rank elsewhere. Raises OSError; what fails later ``poll`` raises."""

        def failed(error: OSError) -> None:
            self._failure = _unserved(rank, error)

        if self._rank_relay is None:
            from distdl_jupyter.clusters.agents.rank_relay import RankRelay  # asyncio is for ranks elsewhere

            self._rank_relay = RankRelay(self._context.folder)
        self._rank_relay.offer(connection, rank, answer, failed)

    def fetch(self, rank: int, path: str, most: int) -> None:
        """Bring a file from a machine that does not see the job's folder."""
        node = self._nodes.of(self._placement.ranks[rank])
        if not getattr(node, "shared", True):
            from distdl_jupyter.clusters.agents import staging  # a start on this machine copies nothing

            staging.fetch(self._context.folder, node, path, most)

    # end --------------------------------------------------------------------------------------

    def interrupted(self) -> str:
        """Return why the machines were taken away."""
        return self._nodes.interrupted()

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs, and another supervisor where the job outlives this one."""
        found = self._nodes.handle()
        if self._nodes.outlive_supervisor:
            found["channels"] = [list(channel) for channel in self._channels]
            if (launcher := self._plan.launcher) is not None:
                found["first_exit"] = f"{launcher.first_exit.__module__}:{launcher.first_exit.__qualname__}"
        return found

    def collect(self) -> None:
        """Bring back what ranks wrote on machines with folders of their own."""
        self._nodes.collect()

    def close(self) -> None:
        """End the agents, with whatever they still run, and free the descriptors."""
        if self._rank_relay is not None:
            self._rank_relay.close()
        for rank in self._served:
            with contextlib.suppress(OSError):
                note_of(self._context.folder.path / NOTES, rank).unlink()
        self._nodes.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                os.close(stream.fd)


class DirectRun(AgentRun):
    """Agents start the ranks and see their ends."""

    def _start_ranks(self) -> None:
        """Let all machines start some ranks, then some more."""
        waiting = {node: self.places(node) for node in self._nodes.nodes}
        while any(waiting.values()):
            begun = []
            for node, places in waiting.items():
                now, waiting[node] = places[:_AT_ONCE], places[_AT_ONCE:]
                if now:
                    begun.append((node, node.connection.begin("start", processes=list(map(self.rank_process, now)))))
            for node, answer in begun:
                with node.connection.hurried():
                    found = node.connection.result(answer, "start", START_SECONDS, self._progress_of_start)
                pids = {int(rank): int(pid) for rank, pid in found["pids"].items() if self._is_on(node, int(rank))}
                self._started += [Start(rank, pid) for rank, pid in pids.items()]
            self._progress_of_start()
        self._nodes.note_start()

    def _progress_of_start(self) -> None:
        self._context.report("start", f"{len(self._started)} of {plural(len(self._placement.ranks), 'process')}")

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        if end["process"] < SERVICES:
            self.ended(Exit(int(end["process"]), end["code"], end["signal"], str(end.get("evidence") or "")))


def _unserved(rank: int, error: OSError) -> LaunchFailed:
    return limits.launch_failed(f"Cannot write the address of rank {rank}", error)


def _await_line(fd: int, text: str, timeout: float, while_waiting: Callable[[], object]) -> str:
    """Read until ``text`` was printed, the stream ended or ``timeout`` seconds are over; return all output.

    ``while_waiting`` is called meanwhile, and ends the wait by raising.
    """
    output, until = "", time.monotonic() + timeout
    while text not in output and (left := until - time.monotonic()) > 0:
        if select.select([fd], [], [], min(left, _POLL_SECONDS))[0]:
            content = os.read(fd, 65_536)
            if not content:
                break
            output += content.decode(errors="replace")
        while_waiting()
    return output

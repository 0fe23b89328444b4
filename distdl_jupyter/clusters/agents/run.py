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

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import ANSWER_SECONDS, HostFailed, ask_all
from distdl_jupyter.clusters.base import Exit, NodeSample, Notice, Run, Start, Stream, Unkillable
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.frames import BrokenWire
from distdl_jupyter.node.job import LAUNCHER, RANK, SERVICE
from distdl_jupyter.worker.serving.connection import NOTES, note_of, write_note

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Node, Nodes
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.agents.rank_relay import RankRelay
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement, Plan, RankSlot, Service
    from distdl_jupyter.node.stacks import Answer

WORKER = ("{python}", "-P", "-m", "distdl_jupyter.worker")
_SERVICE_SECONDS = 60.0
#: Seconds for a machine to start the processes of one request.
START_SECONDS = 60.0
#: Ranks that one request starts; between two requests the start may be stopped.
_AT_ONCE = 8
_WARNED = ("The job will be stopped soon by its time limit or for another job. Ranks were asked to save a checkpoint "
           "(should_checkpoint(), SIGUSR1).")  # fmt: skip
#: Seconds between two calls while a service starts, and bytes that are read of its output at once.
_POLL_SECONDS, _PIECE = 0.5, 65_536
#: The greatest number of living processes of a machine that counts.
_MAX_COUNTED = 10_000


class Event(NamedTuple):
    """An event of an agent."""

    node: Node
    data: dict[str, Any]


class AgentRun(Run):
    """A started job, however its ranks are started."""

    def __init__(self, placement: Placement, plan: Plan, context: Context, nodes: Nodes[Any]) -> None:
        self._placement = placement
        self._plan = plan
        self._context = context
        self._nodes = nodes
        self._streams: list[Stream] = []
        #: The channels for another supervisor to reopen: node, channel, rank (None: the launcher), stream.
        self._channels: list[tuple[int, int, int | None, str]] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._exits: list[Exit] = []
        self._ended: set[int] = set()
        self._started: list[Start] = []
        self._notices: list[Notice] = []
        self._samples: list[NodeSample] = []
        self._warned = False
        self._served: set[int] = set()
        self._rank_relay: RankRelay | None = None
        #: A failure on another thread.
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
        if node.connection.lost:  # before this call
            raise HostFailed(node.host, node.connection.lost, code="host-lost")

    def _on_event(self, node: Node, data: dict[str, Any]) -> None:
        """Queue an event, on the connection's thread if it has one. Raises BrokenWire for another node's rank."""
        self._check_owner(node, data)
        self._events.put(Event(node, data))

    def _check_owner(self, node: Node, data: Mapping[str, Any]) -> None:
        """Raise BrokenWire if an agent reports a process of another node."""
        ranks: list[int] = []
        if data["type"] == "resources":
            ranks = [int(rank) for sample in data["samples"] for rank in sample["ranks"]]
        elif data["type"] == "exit" and data["kind"] == RANK:
            ranks = [int(data["process"])]
        elif data["type"] == "exit" and data["kind"] in (SERVICE, LAUNCHER) and node is not self._nodes.nodes[0]:
            raise BrokenWire(f"The agent reported a {data['kind']}, which does not run on this host.")
        for rank in ranks:
            if not self._is_on(node, rank):
                raise BrokenWire(f"The agent reported rank {rank}, which does not run on this host.")

    def _is_on(self, node: Node, rank: int) -> bool:
        ranks = self._placement.ranks
        return rank < len(ranks) and self._nodes.of(ranks[rank]) is node

    def _start_service(self, number: int, service: Service) -> None:
        node = self._nodes.nodes[0]
        channel, source = node.connection.open_stream()
        self._listen(None, "out", source)
        process = {
            "kind": SERVICE,
            "process": number,
            "argv": ["{python}", *service.arguments],
            "python": node.python,
            "environment": self._nodes.environment(node) | self._nodes.of_service(number),
            "directory": None,
            "out": channel,
            "open_input": True,
        }
        node.connection.ask("start", START_SECONDS, self.progress(f"starting {service.name}"), processes=[process])
        output = _await_line(source, service.ready, _SERVICE_SECONDS, self.progress(f"waiting for {service.name}"))
        if service.ready not in output:
            where = f" on {node.host}" if node.host else ""
            raise LaunchFailed(
                f"{service.name} did not start{where}.", code="service-not-started", output=output.strip()[-2000:]
            )

    def progress(self, detail: str) -> Callable[[], None]:
        """Return a function that reports progress, and raises when the start must stop."""
        return lambda: self._context.report("start", detail)

    def _listen(self, rank: int | None, name: str, source: int | Inbox, start: int | None = None) -> None:
        """Add a stream to read."""
        if isinstance(source, int):
            os.set_blocking(source, False)
        self._streams.append(Stream(source, rank, name, start))

    def channel(self, node: Node, rank: int | None, name: str) -> int:
        """Open a stream of a rank, or of the launcher, and return its channel."""
        channel, source = node.connection.open_stream()
        self._listen(rank, name, source, 0 if self._nodes.outlive_supervisor else None)
        self._channels.append((self._nodes.nodes.index(node), channel, rank, name))
        return channel

    def channels(self, node: Node, rank: int) -> dict[str, int]:
        """Open a rank's two streams and return their channels."""
        return {name: self.channel(node, rank, name) for name in ("out", "err")}

    def reopen(self, channels: Sequence[Sequence[Any]], read: Mapping[tuple[int, str], int]) -> None:
        """Continue to read the streams of an earlier supervisor's ranks (see ``Cluster.attach``)."""
        for at, channel, rank, name in channels:
            start = read.get((-1, "sys") if rank is None else (rank, name), 0)
            self._listen(rank, name, self._nodes.nodes[at].connection.reopen(channel, start), start)
            self._channels.append((at, channel, rank, name))
        for node in self._nodes.nodes:
            self._listen_to(node)

    def rank_environment(self, slot: RankSlot) -> dict[str, str]:
        """Return the variables of one rank beside those of its node."""
        variables = {**self._plan.environments[slot.rank], **environment.of_rank(self._placement, slot)}
        return self._nodes.of_rank(slot, variables)

    def rank_process(self, slot: RankSlot) -> dict[str, Any]:
        """Return the process of a rank for the request ``start``."""
        node = self._nodes.of(slot)
        return {
            "process": slot.rank,
            "argv": WORKER,
            "python": node.python,
            "environment": {**self._nodes.environment(node), **self.rank_environment(slot)},
            "directory": node.directory or None,
            **self.channels(node, slot.rank),
        }

    def slots_on(self, node: Node) -> list[RankSlot]:
        """Return the ranks of a machine."""
        return [slot for slot in self._placement.ranks if self._nodes.of(slot) is node]

    # watch ------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams of ranks, launcher and services, and those of the nodes themselves."""
        return (*self._streams, *self._nodes.streams)

    def started(self) -> list[Start]:
        """Return every rank's process with its id on its machine."""
        return list(self._started)

    def add_notice(self, level: Any, text: str, code: str = "") -> None:
        """Add a notice for the user."""
        self._notices.append(Notice(level, text, code))

    def notices(self) -> list[Notice]:
        """Return what the user should read since the last call."""
        notices = [*self._nodes.notices, *self._notices]
        self._nodes.notices, self._notices = [], []
        return notices

    def poll(self) -> list[Exit]:
        """Return the exits since the last call.

        Raises LaunchFailed if a persistent rank cannot be exposed.
        """
        if self._failure is not None:
            raise self._failure
        self._nodes.poll()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._events.get_nowait())
        self._check()
        exits = {
            exit_.rank: explained for exit_ in self._exits if (explained := self._nodes.explained(exit_)) is not None
        }
        self._exits = [exit_ for exit_ in self._exits if exit_.rank not in exits]
        return list(exits.values())

    def _take(self, event: Event) -> None:
        if event.data["type"] == "exit":
            self._process_ended(event.node, event.data)
        elif event.data["type"] == "lost":
            for slot in self.slots_on(event.node):
                self.ended(Exit(slot.rank, None, None, str(event.data["says"])))
        elif event.data["type"] == "warned":
            if not self._warned:
                self.add_notice("warning", _WARNED, "ends-soon")
            self._warned = True
        elif event.data["type"] == "resources":
            at = self._nodes.nodes.index(event.node) if event.node in self._nodes.nodes else 0
            self._samples += [NodeSample(at, sample) for sample in event.data["samples"]]

    def keep_slots(self) -> None:
        """Keep the job's entries in the machines' queues."""
        self._nodes.keep_slots()

    def samples(self) -> list[NodeSample]:
        """Return the resource samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    @abstractmethod
    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        """Handle the end of a process that an agent started."""

    def _check(self) -> None:
        """Handle changes that no event reports."""

    def ended(self, exit_: Exit) -> None:
        """Record the end of a rank; only the first one counts."""
        if exit_.rank not in self._ended:
            self._ended.add(exit_.rank)
            self._exits.append(exit_)

    def alive(self) -> list[str]:
        """Return the machine of every living process; a lost machine has none."""
        answers = self._ask_all("alive")
        return [node.host for node, data in answers for _ in range(min(int(data["alive"]), _MAX_COUNTED))]

    def unkillable(self) -> list[Unkillable]:
        """Return processes that KILL does not reach, as far as machines answer."""
        return [Unkillable(node.host, int(pid)) for node, data in self._ask_all("stuck") for pid in data["pids"]]

    def _ask_all(self, type_: str) -> list[tuple[Node, dict[str, Any]]]:
        """Send a request to all machines side by side and return the answers."""
        nodes = self._nodes.connected
        answers = ask_all([(node.connection, {}) for node in nodes], type_, ANSWER_SECONDS)
        return [(node, data) for node, data in zip(nodes, answers, strict=True) if isinstance(data, dict)]

    def signal(self, name: str) -> None:
        """Send INT to the ranks and their children, TERM and KILL to all processes, without waiting for answers."""
        for node in self._nodes.connected:
            node.connection.begin("signal", name=name, to="ranks" if name == "INT" else "all")
        self._nodes.signaled(name)

    def on_launcher_output(self, text: str) -> None:
        """Pass on output that is not a rank's."""
        self._nodes.on_launcher_output(text)

    def ask_stacks(self) -> None:
        """Ask all ranks for their stacks, without waiting."""
        for node in self._nodes.nodes:
            node.connection.ask_stacks([slot.rank for slot in self.slots_on(node)])

    def stacks(self) -> Mapping[int, Answer]:
        """Return the answers of ranks since the last call."""
        return {
            rank: answer
            for node in self._nodes.nodes
            for rank, answer in node.connection.stacks().items()
            if self._is_on(node, rank)
        }

    def no_stacks(self) -> str:
        """Return "": ranks with an agent support stack traces."""
        return ""

    def ask_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Send the request to the machines of the ranks."""
        for node in self._nodes.connected:
            if ranks_here := [slot.rank for slot in self.slots_on(node) if slot.rank in ranks]:
                node.connection.begin("profile", ranks=ranks_here, recording=dict(request))

    def serve(self, rank: int) -> None:
        """Write the rank's address: its own socket on this machine, else a relay's socket."""
        node = self._nodes.of(self._placement.ranks[rank])
        self._served.add(rank)
        answer = node.connection.begin("serving", rank=rank)
        try:
            if node.host:
                self._relay_to(node.connection, rank, answer)
            else:
                with contextlib.suppress(HostFailed):  # the rank has ended, which an event reports
                    write_note(note_of(self._context.folder.path / NOTES, rank), answer.result())
        except OSError as error:
            raise _unserved(rank, error) from error

    def _relay_to(self, connection: Connection, rank: int, answer: Future[dict[str, Any]]) -> None:
        """Open a local socket for a remote rank. Raises OSError; ``poll`` raises later failures."""

        def failed(error: OSError) -> None:
            self._failure = _unserved(rank, error)

        if self._rank_relay is None:
            from distdl_jupyter.clusters.agents.rank_relay import RankRelay  # asyncio is only needed for remote ranks

            self._rank_relay = RankRelay(self._context.folder)
        self._rank_relay.offer(connection, rank, answer, failed)

    def fetch(self, rank: int, path: str, most: int) -> None:
        """Copy a file from a machine that does not see the job's folder."""
        node = self._nodes.of(self._placement.ranks[rank])
        if not getattr(node, "shared", True):
            from distdl_jupyter.clusters.agents import staging  # not needed on this machine

            staging.fetch(self._context.folder, node, path, most)

    # end --------------------------------------------------------------------------------------

    def interrupted(self) -> str:
        """Return why a queue took the machines."""
        return self._nodes.interrupted()

    def handle(self) -> dict[str, Any]:
        """Return the data for a sweep, and for another supervisor where the job outlives this one."""
        handle = self._nodes.handle()
        if self._nodes.outlive_supervisor:
            handle["channels"] = [list(channel) for channel in self._channels]
            if (launcher := self._plan.launcher) is not None:
                handle["first_exit"] = f"{launcher.first_exit.__module__}:{launcher.first_exit.__qualname__}"
        return handle

    def collect(self) -> None:
        """Copy back what ranks wrote on machines that do not see the job's folder."""
        self._nodes.collect()

    def close(self) -> None:
        """End the agents and all their processes, and close the streams."""
        if self._rank_relay is not None:
            self._rank_relay.close()
        for rank in self._served:
            with contextlib.suppress(OSError):
                note_of(self._context.folder.path / NOTES, rank).unlink()
        self._nodes.close()
        for stream in self._streams:
            _close(stream.source)


class DirectRun(AgentRun):
    """Agents start the ranks and report their ends."""

    def _start_ranks(self) -> None:
        """Start some ranks on all machines, then the next ones."""
        waiting = {node: self.slots_on(node) for node in self._nodes.nodes}
        while any(waiting.values()):
            begun = []
            for node, slots in waiting.items():
                now, waiting[node] = slots[:_AT_ONCE], slots[_AT_ONCE:]
                if now:
                    begun.append((node, node.connection.begin("start", processes=list(map(self.rank_process, now)))))
            for node, answer in begun:
                with node.connection.hurried():
                    data = node.connection.result(answer, "start", START_SECONDS, self._progress_of_start)
                pids = {int(rank): int(pid) for rank, pid in data["pids"].items() if self._is_on(node, int(rank))}
                self._started += [Start(rank, pid) for rank, pid in pids.items()]
            self._progress_of_start()
        self._nodes.note_start()

    def _progress_of_start(self) -> None:
        self._context.report("start", f"{len(self._started)} of {plural(len(self._placement.ranks), 'process')}")

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        if end["kind"] == RANK:
            self.ended(Exit(int(end["process"]), end["code"], end["signal"], str(end.get("evidence") or "")))


def _unserved(rank: int, error: OSError) -> LaunchFailed:
    return limits.launch_failed(f"Cannot write the address of rank {rank}", error)


def _close(source: int | Inbox) -> None:
    if isinstance(source, Inbox):
        source.close()
        return
    with contextlib.suppress(OSError):
        os.close(source)


def _await_line(source: int | Inbox, text: str, timeout: float, while_waiting: Callable[[], object]) -> str:
    """Read until ``text`` was printed, the stream ended or ``timeout`` seconds are over; return all output.

    ``while_waiting`` is called meanwhile, and ends the wait by raising.
    """
    output, until = "", time.monotonic() + timeout
    while text not in output and (left := until - time.monotonic()) > 0:
        content = _read(source, min(left, _POLL_SECONDS))
        if content == b"":
            break
        output += (content or b"").decode(errors="replace")
        while_waiting()
    return output


def _read(source: int | Inbox, seconds: float) -> bytes | None:
    """Return new bytes, b"" at the end, None without any in ``seconds``."""
    if isinstance(source, Inbox):
        return source.take(_PIECE, seconds)
    return os.read(source, _PIECE) if select.select([source], [], [], seconds)[0] else None

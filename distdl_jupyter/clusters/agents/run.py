"""Runs of jobs whose nodes have agents: their services, streams, signals and exits.

The agents of a ``DirectRun`` start the ranks, so that every exit is known exactly. The ranks of a ``LauncherRun`` are
started by a program such as ``mpirun`` on node 0; agents start its daemons on other hosts (``Relay``). Each rank
connects its output to named pipes on its machine, and the end of the launcher's output names the rank that ended first.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pkgutil
import queue
import select
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import ANSWER_SECONDS, AgentNode, HostFailed, JobNodes, query_all
from distdl_jupyter.clusters.base import Context, Exit, NodeSample, Run, RunNotice, Start, Stream, UnkillableProcess
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import LaunchCommand, Placement, Plan, RankSlot, Service
from distdl_jupyter.node.channels import Inbox, InvalidFrame
from distdl_jupyter.node.job import LAUNCHER, RANK, SERVICE, SHELL
from distdl_jupyter.node.processes import StackDump, get_signal_name, get_signal_number
from distdl_jupyter.worker.rank_socket import NOTES, find_note, write_note

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.connection import Connection, RankRelay

WORKER = ("{python}", "-P", "-m", "distdl_jupyter.worker")
#: Timeouts in seconds for a service to become ready, and for a machine to start its processes.
_SERVICE_SECONDS, _START_SECONDS = 60.0, 60.0
#: The number of ranks started per request; the start can be canceled between two requests.
_BATCH_SIZE = 8
_WARNING = ("The job will be stopped soon by its time limit or for another job. Ranks were asked to save a checkpoint "
            "(should_checkpoint(), SIGUSR1).")  # fmt: skip
#: Seconds between two polls of a starting service, and the maximum number of bytes per read of its output.
_POLL_SECONDS, _READ_BYTES = 0.5, 65_536
#: The maximum number of living processes to report per machine.
_MAX_ALIVE_COUNT = 10_000
#: The maximum number of characters to store of the end of the launcher's output.
_MAX_OUTPUT_CHARS = 20_000
#: Seconds that a launcher may run after its last rank has ended, and seconds between two counts of living ranks.
_IDLE_SECONDS, _COUNT_SECONDS = 10.0, 2.0
#: The exit code with which ssh reports its own failures.
_SSH_FAILURE = 255
#: Runs a command as sshd does, because Open MPI writes it for the user's login shell.
_LOGIN_SHELL = ("/bin/sh", "-c", 'case "$SHELL" in *csh) exec "$SHELL" -c "$0";; esac; exec /bin/sh -c "$0"')
#: The number of recorded bytes of each stream (see ``Cluster.attach``).
Positions = Mapping[tuple[int, str], int]


def start(placement: Placement, plan: Plan, context: Context, nodes: JobNodes) -> Run:
    """Start services, then the ranks or their launcher; the run closes the nodes. Raises LaunchFailed."""
    run = (DirectRun if plan.launcher is None else LauncherRun)(placement, plan, context, nodes)
    run.launch()
    return run


def resume(
    placement: Placement, context: Context, nodes: JobNodes, handle: Mapping[str, Any], positions: Positions
) -> Run:
    """Return the run of a job that an earlier supervisor started; ``handle`` is that run's handle."""
    name = handle.get("first_exit")
    launcher = LaunchCommand((), pkgutil.resolve_name(name)) if name else None
    plan = Plan(({},) * len(placement.ranks), launcher=launcher)
    run = (DirectRun if launcher is None else LauncherRun)(placement, plan, context, nodes)
    run.reopen(handle["channels"], positions)
    return run


class AgentRun(Run):
    """Base class of runs with agents; subclasses start the ranks."""

    def __init__(self, placement: Placement, plan: Plan, context: Context, nodes: JobNodes) -> None:
        self._placement = placement
        self._plan = plan
        self._context = context
        self._nodes = nodes
        self._streams: list[Stream] = []
        #: The channels that another supervisor can reopen: node, channel, rank (or None for the launcher), stream.
        self._channels: list[tuple[int, int, int | None, str]] = []
        self._events: queue.SimpleQueue[tuple[AgentNode, dict[str, Any]]] = queue.SimpleQueue()
        self._exits: list[Exit] = []
        self._ended_ranks: set[int] = set()
        self._starts: list[Start] = []
        self._samples: list[NodeSample] = []
        self._stack_dumps: dict[int, StackDump] = {}
        self._has_warned = False
        self._rank_relay: RankRelay | None = None
        #: A failure of another thread, raised by ``poll``.
        self._failure: LaunchFailed | None = None

    # start ------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start services, then ranks. Raises LaunchFailed and leaves nothing running."""
        try:
            for node in self._nodes.nodes:
                self._subscribe(node)
            for number, service in enumerate(self._plan.services):
                self._start_service(number, service)
            self._start_ranks()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise machine.make_launch_error("The ranks could not be started", error) from error
            raise

    @abstractmethod
    def _start_ranks(self) -> None: ...

    def _subscribe(self, node: AgentNode) -> None:
        node.connection.on_event = lambda data: self._on_event(node, data)
        if node.connection.lost:  # lost before this call
            raise HostFailed(node.host, node.connection.lost, code="host-lost")

    def _on_event(self, node: AgentNode, data: dict[str, Any]) -> None:
        """Queue an event (on the connection's thread). Raises InvalidFrame for a process of another node."""
        kind, ranks = data.get("kind"), list(data.get("answers", ()))
        ranks += [rank for sample in data.get("samples", ()) for rank in sample["ranks"]]
        ranks += [data["process"]] if kind == RANK else []
        if kind in (SERVICE, LAUNCHER) and node is not self._nodes.nodes[0]:
            raise InvalidFrame(f"The agent reported a {kind}, which does not run on this host.")
        for rank in map(int, ranks):
            if not self._runs_on(node, rank):
                raise InvalidFrame(f"The agent reported rank {rank}, which does not run on this host.")
        self._events.put((node, data))

    def _runs_on(self, node: AgentNode, rank: int) -> bool:
        ranks = self._placement.ranks
        return rank < len(ranks) and self._nodes.get_node(ranks[rank]) is node

    def _start_service(self, number: int, service: Service) -> None:
        """Start a service on node 0, and wait until it has printed that it is ready."""
        node, progress = self._nodes.nodes[0], functools.partial(self._context.report, "start")
        channel, source = node.connection.open_stream()
        self._add_stream(None, "out", source)
        variables = self._nodes.get_environment(node) | self._nodes.get_service_variables(number)
        process: dict[str, Any] = {"kind": SERVICE, "process": number, "argv": ["{python}", *service.arguments]}
        process |= {"python": node.python, "environment": variables, "out": channel, "open_input": True}
        # ``progress`` raises an exception if the start was canceled.
        node.connection.ask("start", _START_SECONDS, lambda: progress(f"starting {service.name}"), processes=[process])
        output, deadline = "", time.monotonic() + _SERVICE_SECONDS
        content: bytes | None = None
        while service.ready not in output and content != b"" and time.monotonic() < deadline:
            if isinstance(source, Inbox):
                content = source.take(_READ_BYTES, _POLL_SECONDS)
            else:
                content = os.read(source, _READ_BYTES) if select.select([source], [], [], _POLL_SECONDS)[0] else None
            output += (content or b"").decode(errors="replace")
            progress(f"waiting for {service.name}")
        if service.ready not in output:
            host = f" on {node.host}" if node.host else ""
            text = f"The {service.name} process did not start{host}. See its output below."
            raise LaunchFailed(text, code="service-not-started", output=output.strip()[-2000:])

    def _add_stream(self, rank: int | None, name: str, source: int | Inbox, start: int | None = None) -> None:
        if isinstance(source, int):
            os.set_blocking(source, False)
        self._streams.append(Stream(source, rank, name, start))

    def _open_channels(self, node: AgentNode, rank: int | None) -> dict[str, int]:
        """Open the streams of a rank, or of the launcher, whose errors are in its output; return their channels."""
        channels: dict[str, int] = {}
        for name in ("out",) if rank is None else ("out", "err"):
            channels[name], source = node.connection.open_stream()
            self._add_stream(rank, name, source, 0 if self._nodes.outlives_supervisor else None)
            self._channels.append((self._nodes.nodes.index(node), channels[name], rank, name))
        return channels

    def reopen(self, channels: Sequence[Sequence[Any]], positions: Positions) -> None:
        """Continue to read the streams of an earlier supervisor's ranks (see ``Cluster.attach``)."""
        for index, channel, rank, name in channels:
            start = positions.get((-1, "sys") if rank is None else (rank, name), 0)
            self._add_stream(rank, name, self._nodes.nodes[index].connection.reopen(channel, start), start)
            self._channels.append((index, channel, rank, name))
        for node in self._nodes.nodes:
            self._subscribe(node)

    def _build_rank_variables(self, slot: RankSlot) -> dict[str, str]:
        """Return the variables of one rank, in addition to the variables of its node."""
        variables = {**self._plan.environments[slot.rank], **environment.build_rank_variables(self._placement, slot)}
        return self._nodes.get_rank_variables(slot, variables)

    def _list_slots(self, node: AgentNode) -> list[RankSlot]:
        return [slot for slot in self._placement.ranks if self._nodes.get_node(slot) is node]

    # watch ------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams of ranks, launcher, services and nodes."""
        return (*self._streams, *self._nodes.streams)

    def list_starts(self) -> list[Start]:
        """Return the process of each rank, with its process id on its machine."""
        return list(self._starts)

    def take_notices(self) -> list[RunNotice]:
        """Return the notices for the user since the last call."""
        notices, self._nodes.notices = self._nodes.notices, []
        return notices

    def poll(self) -> list[Exit]:
        """Return the exits since the last call. Raises LaunchFailed if a persistent rank cannot be reached."""
        if self._failure is not None:
            raise self._failure
        self._nodes.poll()
        while not self._events.empty():
            self._handle_event(*self._events.get())
        self._on_poll()
        explanations = [(exit_, self._nodes.explain_exit(exit_)) for exit_ in self._exits]
        self._exits = [exit_ for exit_, explained_exit in explanations if explained_exit is None]
        return [explained_exit for _exit, explained_exit in explanations if explained_exit is not None]

    def _handle_event(self, node: AgentNode, data: dict[str, Any]) -> None:
        if data["type"] == "exit":
            self._on_process_end(node, data)
        elif data["type"] == "lost":
            for slot in self._list_slots(node):
                self._record_exit(Exit(slot.rank, None, None, str(data["reason"])))
        elif data["type"] == "warned":
            if not self._has_warned:
                self._nodes.notices.append(RunNotice("warning", _WARNING, "ends-soon"))
            self._has_warned = True
        elif data["type"] == "resources":
            index = self._nodes.nodes.index(node)
            self._samples += [NodeSample(index, sample) for sample in data["samples"]]
        elif data["type"] == "stacks":
            self._stack_dumps |= {int(rank): msgspec.convert(dump, StackDump) for rank, dump in data["answers"].items()}

    @abstractmethod
    def _on_process_end(self, node: AgentNode, end: Mapping[str, Any]) -> None: ...

    def _on_poll(self) -> None:
        """Handle changes that no event reports."""

    def _record_exit(self, exit_: Exit) -> None:
        if exit_.rank not in self._ended_ranks:  # only the first exit of a rank counts
            self._ended_ranks.add(exit_.rank)
            self._exits.append(exit_)

    def keep_slots(self) -> None:
        """Renew the job's entries in the queues of the machines."""
        self._nodes.keep_slots()

    def take_samples(self) -> list[NodeSample]:
        """Return the resource samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def list_alive(self) -> list[str]:
        """Return the host name of each living process; a lost machine counts as having no processes."""
        answers = self._query_all("alive")
        return [node.host for node, data in answers for _ in range(min(int(data["alive"]), _MAX_ALIVE_COUNT))]

    def list_unkillable(self) -> list[UnkillableProcess]:
        """Return processes that survived KILL, on machines that answer."""
        answers = self._query_all("stuck")
        return [UnkillableProcess(node.host, int(pid)) for node, data in answers for pid in data["pids"]]

    def _query_all(self, type_: str) -> list[tuple[AgentNode, dict[str, Any]]]:
        """Send a request to all machines in parallel; return the machines that answer, with their answers."""
        nodes = self._nodes.connected
        answers = query_all([(node.connection, {}) for node in nodes], type_, ANSWER_SECONDS)
        return [(node, data) for node, data in zip(nodes, answers, strict=True) if isinstance(data, dict)]

    def signal(self, name: str) -> None:
        """Send INT to the ranks and their children, TERM and KILL to all processes, without waiting for answers."""
        for node in self._nodes.connected:
            node.connection.begin("signal", name=name, to="ranks" if name == "INT" else "all")
        self._nodes.on_signal(name)

    def on_launcher_output(self, text: str) -> None:
        """Forward output of the launcher or of a service to the nodes."""
        self._nodes.on_launcher_output(text)

    def request_stacks(self) -> None:
        """Request the stacks of all ranks, without waiting."""
        for node in self._nodes.nodes:
            ranks = [slot.rank for slot in self._list_slots(node)]
            if node.connection.lost:
                self._stack_dumps |= dict.fromkeys(ranks, StackDump(missing=node.connection.lost))
            else:
                node.connection.begin("stacks", ranks=ranks)

    def take_stacks(self) -> Mapping[int, StackDump]:
        """Return the stacks of the ranks that answered since the last call."""
        dumps, self._stack_dumps = self._stack_dumps, {}
        return dumps

    def why_no_stacks(self) -> str:
        """Return "": ranks with an agent support stack traces."""
        return ""

    def request_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Send the request to the machines of the ranks."""
        for node in self._nodes.connected:
            if node_ranks := [slot.rank for slot in self._list_slots(node) if slot.rank in ranks]:
                node.connection.begin("profile", ranks=node_ranks, recording=dict(request))

    def expose_endpoint(self, rank: int) -> None:
        """Write the address of the rank's socket, or of a relay to a remote rank; ``poll`` raises errors."""
        node = self._nodes.get_node(self._placement.ranks[rank])
        answer = node.connection.begin("serving", rank=rank)

        def on_failure(error: OSError) -> None:
            self._failure = machine.make_launch_error(f"Cannot write the address of rank {rank}", error)

        try:
            if not node.host:
                with contextlib.suppress(HostFailed):  # the rank has ended, which an event reports
                    write_note(find_note(self._context.folder.path / NOTES, rank), answer.result())
                return
            if self._rank_relay is None:
                from distdl_jupyter.clusters.agents.connection import RankRelay  # imports asyncio

                self._rank_relay = RankRelay(self._context.folder)
            self._rank_relay.offer(node.connection, rank, answer, on_failure)
        except OSError as error:
            on_failure(error)

    def fetch(self, rank: int, path: str, max_bytes: int) -> None:
        """Copy a file from a machine that does not share the job's folder."""
        node = self._nodes.get_node(self._placement.ranks[rank])
        if not node.is_shared:
            from distdl_jupyter.clusters.agents import staging  # not needed on this machine

            staging.fetch(self._context.folder, node, path, max_bytes)

    # end --------------------------------------------------------------------------------------

    def why_interrupted(self) -> str:
        """Return why a queue preempted the job."""
        return self._nodes.why_interrupted()

    def handle(self) -> dict[str, Any]:
        """Return the data for a sweep, and for another supervisor if the job can outlive this one."""
        handle = self._nodes.handle()
        if self._nodes.outlives_supervisor:
            handle["channels"] = [list(channel) for channel in self._channels]
            if (launcher := self._plan.launcher) is not None:
                handle["first_exit"] = f"{launcher.first_exit.__module__}:{launcher.first_exit.__qualname__}"
        return handle

    def collect(self) -> None:
        """Copy back the files of ranks from machines that do not share the job's folder."""
        self._nodes.collect()

    def close(self) -> None:
        """End the agents and all their processes, and close the streams."""
        if self._rank_relay is not None:
            self._rank_relay.close()
        for slot in self._placement.ranks:
            with contextlib.suppress(OSError):
                find_note(self._context.folder.path / NOTES, slot.rank).unlink()
        self._nodes.close()
        for stream in self._streams:
            if isinstance(stream.source, Inbox):
                stream.source.close()
            else:
                with contextlib.suppress(OSError):
                    os.close(stream.source)


class DirectRun(AgentRun):
    """Agents start the ranks and report their exits."""

    def _start_ranks(self) -> None:
        """Start ranks on all machines, in batches."""
        count = plural(len(self._placement.ranks), "process")

        def report() -> None:
            self._context.report("start", f"{len(self._starts)} of {count}")

        slots = {node: self._list_slots(node) for node in self._nodes.nodes}
        for first in range(0, max(map(len, slots.values())), _BATCH_SIZE):
            requests = []
            for node, node_slots in slots.items():
                processes: list[dict[str, Any]] = []
                for slot in node_slots[first : first + _BATCH_SIZE]:
                    variables = {**self._nodes.get_environment(node), **self._build_rank_variables(slot)}
                    process = {"process": slot.rank, "argv": WORKER, "python": node.python, "environment": variables}
                    channels = self._open_channels(node, slot.rank)
                    processes.append({**process, "directory": node.directory or None, **channels})
                requests.append((node, node.connection.begin("start", processes=processes)))
            for node, answer in requests:
                data = node.connection.result(answer, "start", _START_SECONDS, report)
                starts = [Start(int(rank), int(pid)) for rank, pid in data["pids"].items()]
                self._starts += [start for start in starts if self._runs_on(node, start.rank)]
            report()
        self._nodes.note_start()

    def _on_process_end(self, node: AgentNode, end: Mapping[str, Any]) -> None:
        if end["kind"] == RANK:
            self._record_exit(Exit(int(end["process"]), end["code"], end["signal"], str(end.get("evidence") or "")))


class LauncherRun(AgentRun):
    """A launcher starts the ranks, which report their own process ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self._plan.launcher is not None, "a plan without a launcher is run by DirectRun"
        self._launcher = self._plan.launcher
        self._relay: Relay | None = None
        #: The end of the launcher's output, which names the rank that ended first.
        self._output = ""
        self._launcher_end: Mapping[str, Any] | None = None
        #: After the launcher's end, the requests to all machines to send the output that is left.
        self._drains: list[Future[dict[str, Any]]] = []
        self._is_drained = False
        #: The reason why the launcher was stopped.
        self._reason = ""
        #: The pending counts of living ranks, when to count again, and when ranks were last alive (monotonic).
        self._alive_counts: list[Future[dict[str, Any]]] = []
        self._count_at = 0.0
        self._alive_at: float | None = None

    def _start_ranks(self) -> None:
        while_waiting = functools.partial(self._context.report, "start", "starting the launcher")
        rank_variables = []  # the TMPDIR of a rank differs from the launcher's
        for slot in self._placement.ranks:
            tmpdir = self._nodes.get_environment(self._nodes.get_node(slot)).get("TMPDIR")
            rank_variables.append({**({"TMPDIR": tmpdir} if tmpdir else {}), **self._build_rank_variables(slot)})
        for node in self._nodes.nodes:
            ranks = [{"rank": slot.rank, **self._open_channels(node, slot.rank)} for slot in self._list_slots(node)]
            node.connection.ask("pipes", while_waiting=while_waiting, ranks=ranks, variables=rank_variables)
        # Open MPI creates folders in TMPDIR named by process ids, and leaves them behind if it is killed. The next
        # daemon with the same id then fails, so TMPDIR is a folder that is removed at the end.
        shared = {}
        for node in self._nodes.nodes:
            variables = {**self._nodes.get_environment(node), "TMPDIR": node.private_folder}
            shared[node.host] = {**variables, **self._launcher.environment}
        launcher_node = self._nodes.nodes[0]
        if launcher_node.host:
            self._relay = Relay({node.host: node.connection for node in self._nodes.nodes}, shared)
        process: dict[str, Any] = {"kind": LAUNCHER, "process": 0, "argv": [*self._launcher.argv, *WORKER]}
        process |= {"python": launcher_node.python, "environment": shared[launcher_node.host]}
        process |= {"directory": launcher_node.directory or None, **self._open_channels(launcher_node, None)}
        launcher_node.connection.ask("start", _START_SECONDS, while_waiting, processes=[process])
        self._nodes.note_start(launcher=Path(self._launcher.argv[0]).name)

    def _on_event(self, node: AgentNode, data: dict[str, Any]) -> None:
        """Pass events of remote shells to the relay immediately, and queue all others for ``poll``."""
        relay = self._relay
        if relay is not None and data["type"] == "shell":
            relay.on_request(node.host, data)
        elif relay is not None and data.get("kind") == SHELL:
            relay.report_exit(int(data["process"]), _get_exit_code(data), node.host)
        else:
            if relay is not None and data["type"] == "lost":
                relay.drop_host(node.host)
            super()._on_event(node, data)

    def on_launcher_output(self, text: str) -> None:
        """Store the end of the launcher's output."""
        super().on_launcher_output(text)
        self._output = (self._output + text)[-_MAX_OUTPUT_CHARS:]

    def _on_process_end(self, node: AgentNode, end: Mapping[str, Any]) -> None:
        if end["kind"] == LAUNCHER:
            self._launcher_end = end
            self._drains = [node.connection.begin("drain") for node in self._nodes.connected]

    def _on_poll(self) -> None:
        """Report the exits of all ranks when the launcher has ended and all output was read."""
        if self._launcher_end is None:
            self._end_idle_launcher()
        elif self._is_drained:
            code = _get_exit_code(self._launcher_end)
            first = self._launcher.first_exit(self._output) if code else None
            for slot in self._placement.ranks:
                self._record_exit(self._make_exit(slot.rank, code, first))
        else:
            sources = [stream.source for stream in self._streams if stream.rank is None]
            pending = any(isinstance(source, Inbox) and source.unread for source in sources)
            # A pipe may still hold the end of the launcher's output, which is read before the next call.
            self._is_drained = all(drain.done() for drain in self._drains) and not pending

    def _make_exit(self, rank: int, code: int, first: tuple[int, int | None, int | None] | None) -> Exit:
        """Return the exit of a rank whose launcher ended with this code; ``first`` is the result of ``first_exit``."""
        if not code:
            return Exit(rank, 0, None)
        if first is None:
            return Exit(rank, code, None, self._reason or f"The launcher exited with code {code}.")
        first_rank, first_code, number = first
        if rank != first_rank:
            return Exit(rank, None, "TERM", "stopped")
        if number is None:
            return Exit(rank, first_code, None)
        name, replies = get_signal_name(number), [drain.result() for drain in self._drains if drain.exception() is None]
        evidence = next((reply["evidence"] for reply in replies if reply.get("evidence")), "")
        return Exit(rank, None, name, evidence if name == "KILL" else "")

    def _end_idle_launcher(self) -> None:
        """End a launcher whose ranks have all ended; if the launcher's machine is lost, report their exits.

        Daemons of Open MPI 5 can miss the exit of the last rank if several end together; the launcher then never ends.
        """
        now = time.monotonic()
        if now < self._count_at or not all(count.done() for count in self._alive_counts):
            return
        counts = [int(count.result()["workers"]) for count in self._alive_counts if count.exception() is None]
        self._count_at = now + _COUNT_SECONDS
        self._alive_counts = [node.connection.begin("alive") for node in self._nodes.connected]
        if any(counts):
            self._alive_at = now
        agent = self._nodes.nodes[0].connection
        if agent.lost and counts and not any(counts):
            for slot in self._placement.ranks:
                self._record_exit(Exit(slot.rank, None, "TERM", "stopped"))
        elif self._alive_at is not None and now - self._alive_at > _IDLE_SECONDS and not (agent.lost or self._reason):
            self._reason = "The launcher kept running after its last rank had ended, so it was stopped."
            agent.begin("signal", name="KILL", to="all")


def _get_exit_code(end: Mapping[str, Any]) -> int:
    """Return the exit code of a process by the convention of shells (128 + signal)."""
    return int(end["code"]) if end["code"] is not None else 128 + get_signal_number(str(end["signal"]))


class Relay:
    """The remote shell of a job for Open MPI; ``environments`` are the variables of each host."""

    def __init__(self, connections: Mapping[str, Connection], environments: Mapping[str, Mapping[str, str]]) -> None:
        self._connections = connections
        self._environments = environments
        self._process_numbers = itertools.count()
        #: The host of each command that runs, and the function that sends its output and exit code.
        self._running: dict[int, tuple[str, Callable[..., object]]] = {}

    def on_request(self, source: str, request: Mapping[str, Any]) -> None:
        """Run a command on another host for the host ``source``; ``request`` has shell, host and command."""
        send_answer = functools.partial(self._connections[source].begin, "answer", shell=int(request["shell"]))
        target = self._connections.get(str(request["host"]))
        if target is None:
            send_answer(err=f"Unknown host {request['host']}: the job does not use it.\n", code=_SSH_FAILURE)
            return
        number = next(self._process_numbers)
        self._running[number] = target.host, send_answer

        def forward(name: str, content: bytes) -> None:
            if content:
                send_answer(**{name: content.decode(errors="replace")})

        def on_started(reply: Future[dict[str, Any]]) -> None:
            if (error := reply.exception()) is not None:
                send_answer(err=f"{getattr(error, 'reason', error)}\n")
                self.report_exit(number, _SSH_FAILURE)

        process: dict[str, Any] = {"kind": SHELL, "process": number, "argv": [*_LOGIN_SHELL, str(request["command"])]}
        process |= {name: target.open_channel(functools.partial(forward, name)) for name in ("out", "err")}
        process["environment"] = dict(self._environments[target.host])
        target.begin("start", processes=[process]).add_done_callback(on_started)

    def report_exit(self, number: int, code: int, host: str | None = None) -> None:
        """Report the exit of a process on ``host``, or on any host if it is None; ignore an unknown process."""
        if number in self._running and host in (None, self._running[number][0]):
            self._running.pop(number)[1](code=code)

    def drop_host(self, host: str) -> None:
        """End the commands of a lost host."""
        for number in [number for number, (target, _) in self._running.items() if target == host]:
            self.report_exit(number, _SSH_FAILURE)

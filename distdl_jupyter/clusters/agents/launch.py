"""Starts or resumes a job on nodes with agents; ranks are started by the agents or by a launcher such as ``mpirun``.

A launcher runs on node 0. Where the nodes are other hosts its daemons there are started by the agents (``relay``).
Each rank connects its output to named pipes of its own machine. Which rank ended first is read from the launcher's last
words.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents.run import START_SECONDS, WORKER, AgentRun, DirectRun
from distdl_jupyter.clusters.base import Exit, Stream
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import Launcher, Plan
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.job import LAUNCHER, SHELL
from distdl_jupyter.node.processes import signal_name, signal_number

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Node, Nodes
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.base import Context, Run
    from distdl_jupyter.core.plan import Placement, RankSlot

#: Characters of the launcher's output that are kept.
_MAX_OUTPUT = 20_000
#: Seconds that a launcher may run after its last rank.
_IDLE_SECONDS = 10.0
#: Seconds between two counts of living ranks.
_COUNT_SECONDS = 2.0
#: The rank that ended first, its exit code and the number of its signal.
First = tuple[int, int | None, int | None]


def start(placement: Placement, plan: Plan, context: Context, nodes: Nodes[Any]) -> Run:
    """Start services, then ranks, or the program that starts them. Raises LaunchFailed; nothing is left running then.

    The nodes belong to the run, which closes them.
    """
    run = _run_class(plan)(placement, plan, context, nodes)
    run.launch()
    return run


def resume(
    placement: Placement,
    context: Context,
    nodes: Nodes[Any],
    handle: Mapping[str, Any],
    read: Mapping[tuple[int, str], int],
) -> Run:
    """Return the run of a job that an earlier supervisor started. Raises LaunchFailed.

    ``handle`` is that of its run, ``read`` the number of bytes of each stream that were read. The run closes the nodes.
    """
    name = handle.get("first_exit")
    plan = Plan(({},) * len(placement.ranks), launcher=Launcher((), _reader_of(name)) if name else None)
    run = _run_class(plan)(placement, plan, context, nodes)
    run.reopen(handle["channels"], read)
    return run


def _reader_of(name: str) -> Callable[[str], First | None]:
    """Return the function that reads a launcher's output, by the name in a handle. Raises LaunchFailed."""
    module, _, function = name.partition(":")
    try:
        reader: Callable[[str], First | None] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise LaunchFailed(
            f"Cannot continue this job because {name} is missing here.",
            code="launcher-reader-missing",
            hint="Install the version of distdl_jupyter that started the job.",
        ) from error
    return reader


def _run_class(plan: Plan) -> type[AgentRun]:
    return DirectRun if plan.launcher is None else LauncherRun


class LauncherRun(AgentRun):
    """A launcher starts the ranks, which report their own process ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._relay: Relay | None = None
        self._output = ""
        self._end: Mapping[str, Any] | None = None
        self._drains: list[Future[dict[str, Any]]] = []
        self._drained = False
        self._evidence = ""
        self._counts: list[Future[dict[str, Any]]] = []
        #: Living ranks, None before any machine has answered.
        self._workers: int | None = None
        self._count_at = 0.0
        self._had_ranks = False
        self._no_ranks_since: float | None = None
        self._idle = ""

    def _start_ranks(self) -> None:
        while_waiting = self.progress("starting the launcher")
        variables = list(map(self._variables, self._placement.ranks))
        for node in self._nodes.nodes:
            ranks = [{"rank": slot.rank, **self.channels(node, slot.rank)} for slot in self.slots_on(node)]
            node.connection.ask("pipes", while_waiting=while_waiting, ranks=ranks, variables=variables)
        shared = {node.host: self._environment_of_all(node) for node in self._nodes.nodes}
        if self._nodes.nodes[0].host:
            self._relay = Relay({node.host: node.connection for node in self._nodes.nodes}, shared)
        first = self._nodes.nodes[0]
        process = {
            "kind": LAUNCHER,
            "process": 0,
            "argv": [*self._launch_with.argv, *WORKER],
            "python": first.python,
            "environment": shared[first.host],
            "directory": first.directory or None,
            "out": self.channel(first, None, "out"),
        }
        first.connection.ask("start", START_SECONDS, while_waiting, processes=[process])
        self._nodes.note_start(launcher=Path(self._launch_with.argv[0]).name)

    def _variables(self, slot: RankSlot) -> dict[str, str]:
        """Return the variables of one rank beside those of all; its TMPDIR is not the launcher's."""
        temporary = self._nodes.environment(self._nodes.of(slot)).get("TMPDIR")
        return {**({"TMPDIR": temporary} if temporary else {}), **self.rank_environment(slot)}

    def _environment_of_all(self, node: Node) -> dict[str, str]:
        """Return the environment of launcher, daemons and ranks on a machine.

        Open MPI names folders in TMPDIR by process ids and leaves them there when it is killed. Such a folder makes the
        next daemon with that id fail, so TMPDIR is a folder that is removed at the end.
        """
        return {**self._nodes.environment(node), "TMPDIR": node.run, **self._launch_with.environment}

    @property
    def _launch_with(self) -> Launcher:
        assert self._plan.launcher is not None, "a plan without a launcher is run by DirectRun"
        return self._plan.launcher

    def _on_event(self, node: Node, data: dict[str, Any]) -> None:
        """Pass events of remote shells to the relay at once; all others wait for ``poll``."""
        relay = self._relay
        if relay is not None and data["type"] == "shell":
            relay.on_request(node.host, data)
        elif relay is not None and data["type"] == "exit" and data["kind"] == SHELL:
            relay.ended(int(data["process"]), _code(data), node.host)
        else:
            if relay is not None and data["type"] == "lost":
                relay.lost(node.host)
            super()._on_event(node, data)

    def on_launcher_output(self, text: str) -> None:
        """Keep the end of the launcher's output: it names the rank that ended first."""
        super().on_launcher_output(text)
        self._output = (self._output + text)[-_MAX_OUTPUT:]

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        if end["kind"] == LAUNCHER:
            self._end = end
            self._drains = [node.connection.begin("drain") for node in self._nodes.connected]

    def _check(self) -> None:
        """End all ranks when the launcher has ended and all output is read."""
        if self._end is None:
            self._end_idle_launcher()
        elif self._drained:
            self._end_ranks(_code(self._end))
        elif all(drain.done() for drain in self._drains) and not any(map(_waits, self._streams)):
            # A pipe may still hold the end of the launcher's output, which is read before the next call.
            self._drained = True
            replies = [drain.result() for drain in self._drains if drain.exception() is None]
            self._evidence = next((reply["evidence"] for reply in replies if reply.get("evidence")), "")

    def _end_ranks(self, code: int) -> None:
        first = self._launch_with.first_exit(self._output) if code else None
        reason = self._idle or f"The launcher ended with code {code}."
        for slot in self._placement.ranks:
            if code == 0:
                self.ended(Exit(slot.rank, 0, None))
            else:
                self.ended(exit_of(slot.rank, first, code, reason, self._evidence))

    # ranks without events -------------------------------------------------------------------------

    def _end_idle_launcher(self) -> None:
        """End a launcher whose ranks have all ended; without the launcher's machine report their ends.

        Daemons of Open MPI 5 can miss the end of the last rank when several end at once; the launcher then never ends.
        """
        gone = self._have_gone()
        first = self._nodes.nodes[0].connection
        if not first.lost:
            if gone and not self._idle:
                self._idle = "The launcher kept running after its last rank had ended, so it was stopped."
                first.begin("signal", name="KILL", to="all")
        elif self._workers == 0:
            for slot in self._placement.ranks:
                self.ended(Exit(slot.rank, None, "TERM", "stopped"))

    def _have_gone(self) -> bool:
        """Return whether no rank has been alive for ``_IDLE_SECONDS``, after there was one; nothing is waited for."""
        now = time.monotonic()
        if now < self._count_at:
            return False
        self._count_at = now + _COUNT_SECONDS
        if all(count.done() for count in self._counts):
            replies = [count.result() for count in self._counts if count.exception() is None]
            if self._counts:
                self._workers = sum(int(reply["workers"]) for reply in replies)
            self._counts = [node.connection.begin("alive") for node in self._nodes.connected]
        if self._workers:
            self._had_ranks, self._no_ranks_since = True, None
        elif self._had_ranks and self._no_ranks_since is None:
            self._no_ranks_since = now
        return self._no_ranks_since is not None and now - self._no_ranks_since > _IDLE_SECONDS


def _waits(stream: Stream) -> bool:
    """Return whether output of the launcher was received and not read yet."""
    return stream.rank is None and isinstance(stream.source, Inbox) and stream.source.pending > 0


def exit_of(rank: int, first: First | None, code: int, reason: str, evidence: str = "") -> Exit:
    """Return a rank's end after its launcher failed; ``first`` is the rank that ended first.

    Without it each rank has the launcher's ``code`` and the ``reason``; ``evidence`` is that of a KILL.
    """
    if first is None:
        return Exit(rank, code, None, reason)
    first_rank, first_code, number = first
    if rank != first_rank:
        return Exit(rank, None, "TERM", "stopped")
    if number is None:
        return Exit(rank, first_code, None)
    name = signal_name(number)
    return Exit(rank, None, name, evidence if name == "KILL" else "")


def _code(end: Mapping[str, Any]) -> int:
    """Return a process's exit code as a shell returns it."""
    if end["code"] is not None:
        return int(end["code"])
    return 128 + signal_number(str(end["signal"]))


# Open MPI's remote shell without a second ssh -------------------------------------------------------

#: Exit code of ssh's own failures.
_NO_CONNECTION = 255
#: As sshd runs a command, which Open MPI writes for the login shell, csh or similar to sh.
_LOGIN_SHELL = 'case "$SHELL" in *csh) exec "$SHELL" -c "$0";; esac; exec /bin/sh -c "$0"'


class Relay:
    """The remote shell of one job. ``environments`` has the variables of all ranks on each host."""

    def __init__(
        self,
        connections: Mapping[str, Connection],
        environments: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._connections = connections
        self._environments = environments
        self._numbers = itertools.count()
        self._running: dict[int, tuple[str, Callable[[int], None]]] = {}
        self._lock = threading.Lock()

    def on_request(self, source: str, request: Mapping[str, Any]) -> None:
        """Run a command for the host ``source`` on another host: ``request`` has shell, host, command."""
        answer = functools.partial(self._connections[source].begin, "answer", shell=int(request["shell"]))
        target = self._connections.get(str(request["host"]))
        if target is None:
            answer(err=f"Unknown host {request['host']}: the job does not use it.\n", code=_NO_CONNECTION)
            return
        number = next(self._numbers)
        with self._lock:
            self._running[number] = (target.host, lambda code: _ignore(answer(code=code)))
        started = target.begin("start", processes=[{
            "kind": SHELL,
            "process": number,
            "argv": ["/bin/sh", "-c", _LOGIN_SHELL, str(request["command"])],
            "environment": dict(self._environments[target.host]),
            "directory": None,
            "out": target.channel(_forwarder(answer, "out")),
            "err": target.channel(_forwarder(answer, "err")),
        }])  # fmt: skip
        started.add_done_callback(lambda reply: self._started(number, reply, answer))

    def _started(self, number: int, reply: Future[dict[str, Any]], answer: Callable[..., Any]) -> None:
        if (error := reply.exception()) is not None:
            answer(err=f"{getattr(error, 'says', error)}\n")
            self.ended(number, _NO_CONNECTION)

    def ended(self, number: int, code: int, host: str | None = None) -> bool:
        """Report the end of a process of ``host``; return False for an unknown process."""
        with self._lock:
            process = self._running.get(number)
            if process is None or host not in (None, process[0]):
                return False
            del self._running[number]
        process[1](code)
        return True

    def lost(self, host: str) -> None:
        """End what runs on a lost host."""
        with self._lock:
            numbers = [number for number, (where, _) in self._running.items() if where == host]
        for number in numbers:
            self.ended(number, _NO_CONNECTION)


def _forwarder(answer: Callable[..., Any], name: str) -> Callable[[bytes], None]:
    def forward(content: bytes) -> None:
        if content:
            answer(**{name: content.decode(errors="replace")})

    return forward


def _ignore(_answer: object) -> None:
    """Drop an answer that is not needed."""

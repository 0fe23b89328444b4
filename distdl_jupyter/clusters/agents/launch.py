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

from distdl_jupyter.clusters.agents.run import LAUNCHER, SHELLS, START_SECONDS, WORKER, AgentRun, DirectRun
from distdl_jupyter.clusters.base import Exit
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import Launcher, Plan
from distdl_jupyter.node.processes import signal_name, signal_number

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.agents.agent import AgentConnection, Node, Nodes
    from distdl_jupyter.clusters.base import Context, Run
    from distdl_jupyter.core.plan import Placement, RankSlot

#: Characters of the launcher's last words that are kept.
_LONGEST = 20_000
#: Seconds that a launcher may go on after its last rank.
_IDLE = 10.0
#: Seconds between two looks for living ranks.
_PAUSE = 2.0
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
    """Return the run of a job that an earlier supervisor has started. Raises LaunchFailed.

    ``handle`` is what its run gave, ``read`` how much of each stream was read. The nodes belong to the run.
    """
    name = handle.get("first_exit")
    plan = Plan(({},) * len(placement.ranks), launcher=Launcher((), _reader_of(name)) if name else None)
    run = _run_class(plan)(placement, plan, context, nodes)
    run.reopen(handle["channels"], read)
    return run


def _reader_of(name: str) -> Callable[[str], tuple[int, int | None, int | None] | None]:
    """Return the function that reads a launcher's last words, which a handle names. Raises LaunchFailed."""
    module, _, function = name.partition(":")
    try:
        found: Callable[[str], tuple[int, int | None, int | None] | None] = getattr(
            importlib.import_module(module), function
        )
    except (ImportError, AttributeError) as error:
        raise LaunchFailed(
            f"Cannot continue this job because {name} is missing here.",
            code="launcher-reader-missing",
            hint="Install the version of distdl_jupyter that started the job.",
        ) from error
    return found


def _run_class(plan: Plan) -> type[AgentRun]:
    return DirectRun if plan.launcher is None else LauncherRun


class LauncherRun(AgentRun):
    """Ranks are started by a launcher, and tell their pids themselves."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._relay: Relay | None = None
        self._said = ""
        self._end: Mapping[str, Any] | None = None
        self._drains: list[Future[dict[str, Any]]] = []
        self._drained = False
        self._evidence = ""
        self._watch = RankWatch()
        self._counts: list[Future[dict[str, Any]]] = []
        #: Ranks that live, None before any machine has answered.
        self._workers: int | None = None
        self._idle = ""

    def _start_ranks(self) -> None:
        while_waiting = self.progress("starting the launcher")
        variables = list(map(self._variables, self._placement.ranks))
        for node in self._nodes.nodes:
            ranks = [{"rank": place.rank, **self.channels(node, place.rank)} for place in self.places(node)]
            node.connection.ask("pipes", while_waiting=while_waiting, ranks=ranks, variables=variables)
        shared = {node.host: self._environment_of_all(node) for node in self._nodes.nodes}
        self._relay = Relay({node.host: node.connection for node in self._nodes.nodes}, shared, SHELLS)
        first = self._nodes.nodes[0]
        process = {
            "process": LAUNCHER,
            "argv": [*self._launch_with.argv, *WORKER],
            "python": first.python,
            "environment": shared[first.host],
            "directory": first.directory or None,
            "out": self.channel(first, None, "out"),
        }
        first.connection.ask("start", START_SECONDS, while_waiting, processes=[process])
        self._nodes.note_start(launcher=Path(self._launch_with.argv[0]).name)

    def _variables(self, place: RankSlot) -> dict[str, str]:
        """Return what a rank has besides what the launcher gives to all; its TMPDIR is not the launcher's."""
        own = self._nodes.environment(self._nodes.of(place)).get("TMPDIR")
        return {**({"TMPDIR": own} if own else {}), **self.rank_environment(place)}

    def _environment_of_all(self, node: Node) -> dict[str, str]:
        """Return what launcher, daemons and ranks have on a machine.

        Open MPI names folders in TMPDIR by process numbers and leaves them behind when it is killed; one that an
        earlier process left makes the next daemon of that number fail. So they lie where everything goes at the end.
        """
        return {**self._nodes.environment(node), "TMPDIR": node.run, **self._launch_with.environment}

    @property
    def _launch_with(self) -> Launcher:
        assert self._plan.launcher is not None, "a plan without a launcher is run by DirectRun"
        return self._plan.launcher

    def _on_event(self, node: Node, data: dict[str, Any]) -> None:
        """Serve the relay at once; everything else waits for ``poll``."""
        relay = self._relay
        if relay is not None and data["type"] == "shell":
            relay.on_request(node.connection, data)
        elif relay is not None and data["type"] == "exit" and data["process"] >= SHELLS:
            relay.ended(int(data["process"]), _code(data), node.host)
        else:
            if relay is not None and data["type"] == "lost":
                relay.lost(node.host)
            super()._on_event(node, data)

    def on_launcher_output(self, text: str) -> None:
        """Keep the end of what the launcher prints: it names the rank that ended first."""
        super().on_launcher_output(text)
        self._said = (self._said + text)[-_LONGEST:]

    def _process_ended(self, node: Node, end: Mapping[str, Any]) -> None:
        if end["process"] == LAUNCHER:
            self._end = end
            self._drains = [node.connection.begin("drain") for node in self._nodes.connected]

    def _look(self) -> None:
        """When the launcher has ended, all ranks have: recorded after the last words of all were read."""
        if self._end is None:
            self._end_idle_launcher()
        elif self._drained:
            self._end_ranks(_code(self._end))
        elif all(drain.done() for drain in self._drains) and self.said_all(None):
            # The pipe may still hold the launcher's last words; what has come now is read before the next round.
            self._drained = True
            found = [drain.result() for drain in self._drains if drain.exception() is None]
            self._evidence = next((one["evidence"] for one in found if one.get("evidence")), "")

    def _end_ranks(self, code: int) -> None:
        first = self._launch_with.first_exit(self._said) if code else None
        says = self._idle or f"The launcher ended with code {code}."
        for place in self._placement.ranks:
            if code == 0:
                self.ended(Exit(place.rank, 0, None))
            else:
                self.ended(exit_of(place.rank, first, code, says, self._evidence))

    # what no event tells ------------------------------------------------------------------------

    def _end_idle_launcher(self) -> None:
        """End a launcher whose ranks have all gone; without the machine of the launcher count the ranks themselves."""
        gone = self._watch.have_gone(self._running_workers)
        first = self._nodes.nodes[0].connection
        if not first.lost:
            if gone and not self._idle:
                self._idle = "The launcher kept running after its last rank had ended, so it was stopped."
                first.begin("signal", name="KILL", to="all")
        elif self._workers == 0:
            for place in self._placement.ranks:
                self.ended(Exit(place.rank, None, "TERM", "stopped"))

    def _running_workers(self) -> list[int]:
        """Return something for each rank that lived when the machines answered last; nothing is waited for."""
        if all(count.done() for count in self._counts):
            found = [count.result() for count in self._counts if count.exception() is None]
            if self._counts:
                self._workers = sum(int(one["workers"]) for one in found)
            self._counts = [node.connection.begin("alive") for node in self._nodes.connected]
        return [0] * (self._workers or 0)


class RankWatch:
    """Says when the ranks of a launcher have been gone for ``_IDLE`` seconds.

    Daemons of Open MPI 5 can miss the end of the last rank when several end at once; the launcher then waits forever.
    """

    def __init__(self) -> None:
        self._seen = False
        self._next = 0.0
        self._missing_since: float | None = None

    def have_gone(self, running_workers: Callable[[], list[int]]) -> bool:
        """Ask ``running_workers`` every ``_PAUSE`` seconds; before the first rank was seen nothing counts as gone."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PAUSE
        if running_workers():
            self._seen, self._missing_since = True, None
        elif self._seen and self._missing_since is None:
            self._missing_since = now
        return self._missing_since is not None and now - self._missing_since > _IDLE


def exit_of(rank: int, first: First | None, code: int, says: str, evidence: str = "") -> Exit:
    """Return a rank's end as the last words of a launcher that failed give it: ``first`` is the rank that ended first.

    Without it each rank has the launcher's ``code``, and ``says`` tells that; ``evidence`` is that of a KILL.
    """
    if first is None:
        return Exit(rank, code, None, says)
    first_rank, first_code, number = first
    if rank != first_rank:
        return Exit(rank, None, "TERM", "stopped")
    if number is None:
        return Exit(rank, first_code, None)
    name = signal_name(number)
    return Exit(rank, None, name, evidence if name == "KILL" else "")


def _code(end: Mapping[str, Any]) -> int:
    """Return a process's exit code as a shell gives it."""
    if end["code"] is not None:
        return int(end["code"])
    return 128 + signal_number(str(end["signal"]))


# Open MPI's remote shell without a second ssh -------------------------------------------------------

#: What ssh's own failures give.
_NO_CONNECTION = 255
#: As sshd runs a command: Open MPI words it for the login shell, csh or like sh.
_LOGIN_SHELL = 'case "$SHELL" in *csh) exec "$SHELL" -c "$0";; esac; exec /bin/sh -c "$0"'


class Relay:
    """The remote shell of one job. ``environments`` has for each host what its ranks share."""

    def __init__(
        self,
        connections: Mapping[str, AgentConnection],
        environments: Mapping[str, Mapping[str, str]],
        first_number: int,
    ) -> None:
        self._connections = connections
        self._environments = environments
        self._numbers = itertools.count(first_number)
        self._running: dict[int, tuple[str, Callable[[int], None]]] = {}
        self._lock = threading.Lock()

    def on_request(self, source: AgentConnection, request: Mapping[str, Any]) -> None:
        """Run a command for ``source`` on another host: ``request`` has shell, host, command."""
        answer = functools.partial(source.begin, "answer", shell=int(request["shell"]))
        target = self._connections.get(str(request["host"]))
        if target is None:
            answer(err=f"Unknown host {request['host']}: the job does not use it.\n", code=_NO_CONNECTION)
            return
        number = next(self._numbers)
        with self._lock:
            self._running[number] = (target.host, lambda code: _ignore(answer(code=code)))
        started = target.begin("start", processes=[{
            "process": number,
            "argv": ["/bin/sh", "-c", _LOGIN_SHELL, str(request["command"])],
            "environment": dict(self._environments[target.host]),
            "directory": None,
            "out": target.channel(_passing_on(answer, "out")),
            "err": target.channel(_passing_on(answer, "err")),
        }])  # fmt: skip
        started.add_done_callback(lambda reply: self._started(number, reply, answer))

    def _started(self, number: int, reply: Future[dict[str, Any]], answer: Callable[..., Any]) -> None:
        if (error := reply.exception()) is not None:
            answer(err=f"{getattr(error, 'says', error)}\n")
            self.ended(number, _NO_CONNECTION)

    def ended(self, number: int, code: int, host: str | None = None) -> bool:
        """Pass on the end of a process, which ``host`` reports; False when it was none of these."""
        with self._lock:
            known = self._running.get(number)
            if known is None or host not in (None, known[0]):
                return False
            del self._running[number]
        known[1](code)
        return True

    def lost(self, host: str) -> None:
        """End what runs on a host that is gone."""
        with self._lock:
            numbers = [number for number, (where, _) in self._running.items() if where == host]
        for number in numbers:
            self.ended(number, _NO_CONNECTION)


def _passing_on(answer: Callable[..., Any], name: str) -> Callable[[bytes], None]:
    def pass_on(content: bytes) -> None:
        if content:
            answer(**{name: content.decode(errors="replace")})

    return pass_on


def _ignore(_answer: object) -> None:
    """Nobody waits for this answer."""

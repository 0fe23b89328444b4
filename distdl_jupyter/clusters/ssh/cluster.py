"""Hosts reached over OpenSSH as a cluster: ``ssh`` starts one agent on each, which starts and ends the ranks there."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents.agent import Host, HostTrouble, Unreachable, ask_all
from distdl_jupyter.clusters.agents.cluster import AgentCluster, rank_slots
from distdl_jupyter.clusters.agents.connection import Connection, end_all
from distdl_jupyter.clusters.agents.staging import AgentNodes
from distdl_jupyter.clusters.base import Check, Context, NodeInfo, Notice
from distdl_jupyter.clusters.ssh import command
from distdl_jupyter.clusters.ssh import hosts as hostlist
from distdl_jupyter.clusters.ssh.hosts import SshOptions
from distdl_jupyter.clusters.ssh.reach import connected, in_thread, reach, reach_all
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.spec import JobSpec

#: Seconds for connecting in a check (ssh's own limit, and a Python that starts on a slow disk), and for all of it.
_REACH_SECONDS, _CHECK_SECONDS = command.CONNECT_SECONDS + 5.0, 28.0
_SWEEP_SECONDS = 20.0
#: Seconds between two queries of a host's state, and for its answer.
QUERY_SECONDS, ANSWER_SECONDS = 4.0, 8.0
#: Seconds without a caller after which the connections are closed.
IDLE_SECONDS = 15.0
#: Seconds that a caller waits for hosts whose state is unknown, and after which a state is out of date.
FIRST_SECONDS, STALE_SECONDS = 4.0, 60.0
#: Seconds to the next attempt where a retry alone will not help; repeated failed logins often lock an account.
_RETRY_SECONDS, _DENIED_SECONDS = 30.0, 300.0
#: Reasons that only mean that there was no response.
_SILENT = frozenset(("timeout", "route", "refused"))


class SshCluster(AgentCluster):
    """Runs ranks on hosts that are reached by ssh."""

    name = "ssh"
    title = "SSH hosts"
    Options = SshOptions
    queues = True
    slots = True

    def unavailable(self, options: SshOptions) -> str:
        """Return the remedy when ssh is missing or no host is listed."""
        if shutil.which("ssh") is None:
            return "ssh is not installed. Install the OpenSSH client, for example: apt-get install openssh-client"
        try:
            hostlist.listed(options)
        except InvalidSpec as error:
            return str(error)
        return ""

    def process_count_per_node(self, options: SshOptions, *, use_gpu: bool | None) -> int:
        """Return the fewest slots of the listed hosts, else the fewest GPUs of the hosts that are up, else 1."""
        slots = [host.slots for host in hostlist.listed(options) if host.slots]
        if slots:
            return min(slots)
        if use_gpu is False:
            return 1
        return max(1, min((node.gpus for node in self.nodes(options) if node.state == "up"), default=1))

    def validate(self, options: SshOptions) -> None:
        """Reject options that list no host, or a file or pattern that yields none."""
        hostlist.listed(options)

    def suggestions(self) -> dict[str, list[str]]:
        """Return the hosts of the user's ssh configuration."""
        return {"hosts": hostlist.configured()}

    def detail(self, options: SshOptions) -> str:
        """Return the number of hosts."""
        try:
            return plural(len(hostlist.listed(options)), "host")
        except InvalidSpec:
            return ""

    def nodes(self, options: SshOptions) -> list[NodeInfo]:
        """Return the hosts in the cluster's order with their last known state. Raises InvalidSpec."""
        return host_states(options)

    def checks(self, options: SshOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
        """Connect to every host and check what a job needs there, within 30 s. Raises InvalidSpec."""
        from distdl_jupyter.clusters.agents import checkup

        until = time.monotonic() + _CHECK_SECONDS
        with connected(hostlist.listed(options), options, _REACH_SECONDS) as (connections, unreachable):
            # Silent hosts have used up their time by now; the rest is for those that answered.
            seconds = min(checkup.LOOK_SECONDS, until - time.monotonic())
            result = checkup.look(connections, unreachable, options, modules, programs, seconds=seconds)
        _query_now(options)
        return list(result.checks)

    def preview(self, spec: JobSpec, options: SshOptions) -> Placement:
        """Place ranks on the hosts in their order, without interfaces and GPUs, which only the hosts know."""
        hosts, _spare = hostlist.split(spec, options)
        return Placement(rank_slots(spec, [host.name for host in hosts]), address="", ports=(), interface="")

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SshOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Connect to the hosts; after a restart spare hosts replace lost ones, or the job starts on fewer."""
        hosts, spare = hostlist.split(spec, options)
        unreachable = self._reach(hosts, spec, options, context)
        if spare and unreachable and context.restart:
            before = len(self._connections)
            self._reach(spare[: len(unreachable)], spec, options, context)
            replacements = self._connections[before:]
            for connection, lost in zip(replacements, unreachable, strict=False):
                text = f"{lost.host} is no longer reachable. {connection.host} replaces it."
                context.note(Notice("warning", text, "spare-host"))
            unreachable = unreachable[len(replacements) :]
        if unreachable and len(self._connections) >= (context.least_node_count or len(hosts)):
            return dataclasses.replace(spec, node_count=len(self._connections)), []
        return spec, unreachable

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> SshNodes:
        """Return the hosts."""
        return SshNodes(job, placement, context, self._nodes)

    def _reach(self, hosts: Sequence[Host], spec: JobSpec, options: SshOptions, context: Context) -> list[Unreachable]:
        """Add the connections to ``hosts``; return which of them cannot be reached."""
        count = plural(len(hosts), "host")
        context.report("stage", f"connecting to {count}")
        results = reach_all(
            hosts, options, spec.python, report=lambda done: context.report("stage", f"connected to {done} of {count}")
        )
        self._connections += [result for result in results if isinstance(result, Connection)]
        return [result for result in results if isinstance(result, Unreachable)]

    # after a supervisor's death ---------------------------------------------------------------------

    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[str]:
        """Kill what is left of a job on its hosts; agents without a supervisor do so themselves within seconds.

        Returns the host of every process that was killed. Raises LaunchFailed, which names hosts that do not respond.
        """
        options = SshOptions(**{name: handle.get(name, "") for name in ("ssh_config", "python", "directory")})
        hosts = [Host(str(host["name"]), str(host["target"])) for host in handle.get("hosts") or []]
        until = time.monotonic() + _SWEEP_SECONDS
        results = reach_all(hosts, options)
        silent: list[HostTrouble] = [result for result in results if isinstance(result, Unreachable)]
        connections = [result for result in results if isinstance(result, Connection)]
        fields = {"job": job_id, "base": options.directory}
        timeout = max(1.0, until - time.monotonic())
        answers = ask_all([(connection, fields) for connection in connections], "sweep", timeout)
        silent += [answer for answer in answers if isinstance(answer, HostTrouble)]
        killed = [
            connection.host
            for connection, answer in zip(connections, answers, strict=True)
            if isinstance(answer, dict)
            for _ in range(int(answer["found"]))
        ]
        end_all(connections)
        if silent:
            raise LaunchFailed(
                f"{listing([error.host for error in silent])} cannot be reached: {silent[0].says}",
                code="hosts-unreachable",
                hint=f"Ranks on these hosts stop on their own. {silent[0].remedy}".strip(),
            )
        return killed


class SshNodes(AgentNodes):
    """The hosts of a started job."""

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs: the hosts, how they are reached, and where their folders are."""
        hosts = [
            {"name": node.host, "target": node.connection.target.target, "folder": node.folder, "shared": node.shared}
            for node in self.nodes
        ]
        options = self._job.options
        return {
            "hosts": hosts,
            "ssh_config": options.ssh_config,
            "python": options.python or self._job.spec.python,
            "directory": options.directory,
        }


# states of hosts, for lists that are redrawn every few seconds -----------------------------------------


class _HostState:
    """The last known state of a host, and the connection on which it is queried."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        self._host = host
        self._options = options
        self._lock = threading.Lock()  # of the connection
        self._connection: Connection | None = None
        self._query: Future[None] | None = None
        self._node: NodeInfo | None = None
        self._known_at = self._next_query = 0.0  # monotonic
        self._answered_at = self._failed_since = 0.0  # epoch, 0.0 for never

    def query(self) -> Future[None]:
        """Begin a query unless one is running or the last one is recent; return the latest."""
        if self._query is None or (self._query.done() and time.monotonic() >= self._next_query):
            self._query = in_thread(self._ask)
        return self._query

    def query_now(self) -> None:
        """Let the next caller begin a query."""
        self._next_query = 0.0

    @property
    def is_known(self) -> bool:
        return self._node is not None and time.monotonic() - self._known_at < STALE_SECONDS

    @property
    def node(self) -> NodeInfo:
        if self._node is not None and self.is_known:
            return self._node
        since = self._answered_at
        return NodeInfo(
            self._host.name, "unknown", f"no response since {_moment(since)}" if since else "no response yet"
        )

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self) -> None:
        begun, pause = time.time(), QUERY_SECONDS
        try:
            with self._lock:
                self._connection = self._connection or reach(self._host, self._options)
                facts = self._connection.ask("facts", timeout=ANSWER_SECONDS)
        except HostTrouble as error:
            self.close()
            self._failed_since = self._failed_since or self._answered_at or begun
            kind = error.kind if isinstance(error, Unreachable) else "timeout"
            is_silent = kind in _SILENT
            reason = f"no response since {_moment(self._failed_since)}" if is_silent else error.says
            self._node = NodeInfo(self._host.name, "down", reason)
            pause = _DENIED_SECONDS if kind == "denied" else QUERY_SECONDS if is_silent else _RETRY_SECONDS
        else:
            self._answered_at, self._failed_since = time.time(), 0.0
            self._node = node_info(self._host.name, facts)
        self._known_at = time.monotonic()
        self._next_query = self._known_at + pause


_lock = threading.Lock()
_states: dict[tuple[Host, SshOptions], _HostState] = {}
_idle: threading.Timer | None = None


def host_states(options: SshOptions, timeout: float = FIRST_SECONDS) -> list[NodeInfo]:
    """Return all hosts as they were a few seconds ago, in the cluster's order. Raises InvalidSpec.

    Waits at most ``timeout`` seconds, and only for hosts whose state is not known: they are "unknown" then.
    """
    global _idle
    hosts = hostlist.listed(options)
    with _lock:
        states = [_states.setdefault((host, options), _HostState(host, options)) for host in hosts]
        queries = [state.query() for state in states]
        if _idle is not None:
            _idle.cancel()
        _idle = threading.Timer(IDLE_SECONDS, close_connections)
        _idle.daemon = True
        _idle.start()
    wait([query for state, query in zip(states, queries, strict=True) if not state.is_known], timeout)
    return [state.node for state in states]


def close_connections() -> None:
    """Close the connections of all states; the next query opens them again."""
    with _lock:
        states = list(_states.values())
    wait([in_thread(state.close) for state in states])


def _query_now(options: SshOptions) -> None:
    """Let hosts in trouble be queried at once: the user may have fixed them."""
    with _lock:
        for (_host, options_), state in _states.items():
            if options_ == options:
                state.query_now()


def _moment(moment: float) -> str:
    """Return "02:46", or the day unless it was today."""
    return humanize.clock(moment)[:5] if time.time() - moment < 12 * 3600 else humanize.day(moment)


def node_info(name: str, facts: Mapping[str, Any]) -> NodeInfo:
    """Return a host as lists show it, from ``node.facts``."""
    gpus = facts.get("gpus") or []
    return NodeInfo(
        name,
        "up",
        gpus=len(gpus),
        gpu_name=str(gpus[0]["name"]) if gpus else "",
        cores=int(facts.get("cores") or 0),
        python=str((facts.get("python") or {}).get("version", "")),
        load=facts.get("load"),
        ranks=facts.get("ranks"),
    )

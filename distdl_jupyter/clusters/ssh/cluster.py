"""SSH hosts as a cluster: ``ssh`` starts one agent on each host, and the agent starts and ends the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from distdl_jupyter.clusters import environment, package
from distdl_jupyter.clusters.agents import checkup, wire
from distdl_jupyter.clusters.agents.agent import Host, HostTrouble, Unreachable, ask_all
from distdl_jupyter.clusters.agents.cluster import AgentCluster, rank_slots
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, NodeInfo, RunNotice
from distdl_jupyter.clusters.ssh import command
from distdl_jupyter.clusters.ssh import hosts as hostlist
from distdl_jupyter.clusters.ssh.hosts import SshOptions
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.spec import JobSpec

#: Timeouts in seconds of a check: for connecting (ssh's limit plus the time to start Python), and in total.
_REACH_SECONDS, _CHECK_SECONDS = command.CONNECT_SECONDS + 5.0, 28.0
_SWEEP_SECONDS = 10.0
#: Timeout in seconds of a query of the hosts' states; a login can take several seconds.
_STATE_SECONDS = 8.0
#: Seconds after which a host is queried again: if it is up, and if it is down. Every query is a login, and a page
#: that shows the list repeats it.
QUERY_SECONDS, RETRY_SECONDS = 30.0, 60.0
#: Seconds before a host that refused a login is tried again; repeated failed logins often lock an account.
_DENIED_SECONDS = {"unreachable-denied": 300.0}
#: The last known state of each host, with the monotonic time at which it expires.
_states: dict[tuple[Host, SshOptions], tuple[float, NodeInfo]] = {}


class SshCluster(AgentCluster):
    """Runs ranks on SSH hosts."""

    name = "ssh"
    title = "SSH hosts"
    Options = SshOptions
    queues = True
    slots = True

    def unavailable(self, options: SshOptions) -> str:
        """Return the remedy if ssh is missing or no host is listed."""
        if shutil.which("ssh") is None:
            return "ssh is not installed. Install the OpenSSH client, for example: apt-get install openssh-client"
        try:
            hostlist.listed(options)
        except InvalidSpec as error:
            return str(error)
        return ""

    def process_count_per_node(self, options: SshOptions, *, use_gpu: bool | None) -> int:
        """Return the minimum slots of the listed hosts, else the minimum GPUs of the hosts that are up, else 1."""
        slots = [host.slots for host in hostlist.listed(options) if host.slots]
        if slots:
            return min(slots)
        if use_gpu is False:
            return 1
        return max(1, min((node.gpus for node in self.nodes(options) if node.state == "up"), default=1))

    def validate(self, options: SshOptions) -> None:
        """Raise InvalidSpec for invalid options, or if they yield no hosts, for example if a pattern matches none."""
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

    def nodes(self, options: SshOptions, timeout: float = _STATE_SECONDS) -> list[NodeInfo]:
        """Return the hosts in the cluster's order with their last known state, within ``timeout`` seconds.

        A state expires after some seconds; after a refused login much later, because failures may lock the account.
        Raises InvalidSpec.
        """
        hosts, now = hostlist.listed(options), time.monotonic()
        expired_hosts = {host.name: host for host in hosts if _states.get((host, options), (now,))[0] <= now}
        with connected(list(expired_hosts.values()), options, timeout) as (connections, unreachable):
            responses = ask_all([(connection, dict[str, Any]()) for connection in connections], "facts", timeout)
        for trouble in (*unreachable, *(answer for answer in responses if isinstance(answer, HostTrouble))):
            expires_at = time.monotonic() + _DENIED_SECONDS.get(trouble.code, RETRY_SECONDS)
            _states[expired_hosts[trouble.host], options] = expires_at, NodeInfo(trouble.host, "down", trouble.reason)
        for connection, facts in zip(connections, responses, strict=True):
            if isinstance(facts, dict):
                gpus, name = facts.get("gpus") or [], connection.host
                node = NodeInfo(
                    name,
                    "up",
                    gpus=len(gpus),
                    gpu_name=str(gpus[0]["name"]) if gpus else "",
                    cores=int(facts.get("cores") or 0),
                    python=str((facts.get("python") or {}).get("version", "")),
                    load=round(facts["load"], 1) if facts.get("load") is not None else None,
                    ranks=facts.get("ranks"),
                )
                _states[expired_hosts[name], options] = time.monotonic() + QUERY_SECONDS, node
        return [_states[host, options][1] for host in hosts]

    def checks(
        self, options: SshOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Connect to every host and check the requirements of jobs, within 30 s. Raises InvalidSpec."""
        deadline = time.monotonic() + _CHECK_SECONDS
        hosts = hostlist.listed(options)
        with connected(hosts, options, _REACH_SECONDS) as (connections, unreachable):
            # Use the remaining time for the hosts that have responded.
            seconds = min(checkup.CHECK_SECONDS, deadline - time.monotonic())
            result = checkup.check_hosts(connections, unreachable, options, modules, programs, seconds=seconds)
        for host in hosts:
            _states.pop((host, options), None)  # the user may have fixed the host
        return list(result.checks)

    def preview(self, spec: JobSpec, options: SshOptions) -> Placement:
        """Place ranks on the hosts in their order; interfaces and GPUs are unknown without a connection."""
        hosts, _spare = hostlist.split(spec, options)
        return Placement(rank_slots(spec, [host.name for host in hosts]), address="", ports=(), interface="")

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SshOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Connect to the hosts. After a restart, spare hosts replace lost ones, or the job starts on fewer hosts."""
        hosts, spare = hostlist.split(spec, options)
        unreachable = self._reach(hosts, spec, options, context)
        if spare and unreachable and context.restart:
            connected_count = len(self._connections)
            self._reach(spare[: len(unreachable)], spec, options, context)
            for connection in self._connections[connected_count:]:
                text = f"{unreachable.pop(0).host} is no longer reachable. {connection.host} replaces it."
                context.note(RunNotice("warning", text, "spare-host"))
        if unreachable and len(self._connections) >= (context.least_node_count or len(hosts)):
            return dataclasses.replace(spec, node_count=len(self._connections)), []
        return spec, unreachable

    def _reach(self, hosts: Sequence[Host], spec: JobSpec, options: SshOptions, context: Context) -> list[Unreachable]:
        """Connect to ``hosts``; return the unreachable hosts."""
        count = plural(len(hosts), "host")
        context.report("stage", f"connecting to {count}")
        results = reach_all(
            hosts, options, spec.python, report=lambda done: context.report("stage", f"connected to {done} of {count}")
        )
        self._connections += [result for result in results if isinstance(result, Connection)]
        return [result for result in results if isinstance(result, Unreachable)]

    def _nodes_of(self, job: StagedJob, placement: Placement, context: Context) -> AgentNodes:
        """Return the hosts, with a handle that holds the connection options and folders for a sweep."""
        hosts = [
            {"name": node.host, "target": node.connection.target.target, "folder": node.folder, "shared": node.shared}
            for node in self._nodes
        ]
        handle = {
            "hosts": hosts,
            "ssh_config": job.options.ssh_config,
            "python": job.options.python or job.spec.python,
            "directory": job.options.directory,
        }
        return AgentNodes(job, placement, context, self._nodes, handle)

    # after the supervisor has ended -----------------------------------------------------------------

    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[str]:
        """Kill the processes of a job on its hosts. Agents that lose their supervisor also do so within seconds.

        Returns the host of each killed process. Raises LaunchFailed, which lists the hosts that do not respond.
        """
        options = SshOptions(**{name: handle.get(name, "") for name in ("ssh_config", "python", "directory")})
        hosts = [Host(str(host["name"]), str(host["target"])) for host in handle.get("hosts") or []]
        with connected(hosts, options, _REACH_SECONDS) as (connections, unreachable):
            queries = [(connection, {"job": job_id, "base": options.directory}) for connection in connections]
            responses = ask_all(queries, "sweep", _SWEEP_SECONDS)
        killed_hosts, failures = list[str](), list[HostTrouble](unreachable)
        for connection, answer in zip(connections, responses, strict=True):
            if isinstance(answer, HostTrouble):
                failures.append(answer)
            else:
                killed_hosts += [connection.host] * int(answer["killed"])
        if failures:
            raise LaunchFailed(
                f"{listing([error.host for error in failures])} cannot be reached: {failures[0].reason}",
                code="hosts-unreachable",
                hint=f"Ranks on these hosts stop on their own. {failures[0].remedy}".strip(),
            )
        return killed_hosts


# connections --------------------------------------------------------------------------------------


#: Seconds of silence after which a broken connection is reported as a host that does not respond.
_SILENCE_SECONDS = 3.0
#: The exit code of ssh itself when it fails.
_SSH_FAILED = 255
#: Seconds between two polls for the exit of ssh, and the timeout for its remaining error output.
_POLL_SECONDS, _ERRORS_SECONDS = 0.01, 0.2
#: Timeout in seconds for closing connections; an unresponsive host does not delay the caller further.
_CLOSE_SECONDS = 6.0
#: Seconds between two reports of how many hosts are connected.
_REPORT_SECONDS = 0.5


class SshProcess(wire.Link):
    """A process such as ssh that is connected to the agent on a host; ``variables`` is its environment."""

    def __init__(self, name: str, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        super().__init__()
        self._name = name
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._stdin_fd, self._stdout_fd, self._stderr_fd = (pipe.fileno() for pipe in self._pipes)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    async def open(self) -> None:
        """Start collecting the error output of the process."""
        self._errors = asyncio.create_task(self.keep_errors(functools.partial(wire.read, self._stderr_fd)))

    async def read(self) -> bytes:
        """Return the next output of the process."""
        return await wire.read(self._stdout_fd)

    async def write(self, content: bytes) -> None:
        """Write to the standard input of the process."""
        await wire.write(self._stdin_fd, content)

    def close_input(self) -> None:
        """Close the standard input of the process; idempotent."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()

    async def end(self, grace: float = 0.0) -> None:
        """Wait for the process to exit; kill it after ``grace`` seconds."""
        deadline = time.monotonic() + grace
        while self.code is None:
            if time.monotonic() >= deadline:
                self._process.kill()
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Close the streams of the process."""
        self._errors.cancel()
        await asyncio.wait([self._errors])
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    async def why_ended(self, silent: float) -> str:
        """Return why the output ended, ``silent`` seconds after the last byte."""
        await self.end(2.0)
        # A child of ssh may keep standard error open.
        await asyncio.wait([self._errors], timeout=_ERRORS_SECONDS)
        code, last_line = self.code, self.last_line
        if code == _SSH_FAILED and silent > _SILENCE_SECONDS:
            return f"No response from {self._name} for {silent:.0f} s."
        if code == _SSH_FAILED:
            return f"The connection to {self._name} broke{last_line}."
        return f"The agent on {self._name} ended with code {code}{last_line}."


def reach(host: Host, options: SshOptions, python: str = "") -> Connection:
    """Start an agent on a host and return the connection. Raises Unreachable.

    ``python`` is the interpreter to use if the options set none.
    """
    path = options.python or python or sys.executable
    base = options.directory or DIRECTORY
    first_input = package.first_input(path, base, [str(options.patience_seconds)])
    argv = command.argv(host, os.path.expanduser(options.ssh_config) if options.ssh_config else "")  # noqa: PTH111
    try:
        link = SshProcess(host.name, argv, environment.for_ssh())
    except OSError as error:
        text = f"Cannot start ssh: {error.strerror or error}."
        remedy = "Install the OpenSSH client on this machine."
        raise Unreachable(host.name, "ssh-missing", text, remedy) from None
    connection = Connection(host, link, first_input)
    connection.shell = command.shell_command(host, options.ssh_config)
    connection.start()
    connection.await_greeting(lambda output, code: command.explain(host, options.ssh_config, path, output, code))
    return connection


def reach_all(
    hosts: Sequence[Host],
    options: SshOptions,
    python: str = "",
    *,
    seconds: float = math.inf,
    report: Callable[[int], object] = bool,
) -> list[Connection | Unreachable]:
    """Start agents in parallel; return a connection or the error for each host, in their order.

    A host that does not answer within ``seconds`` is unreachable; ssh has its own limit. ``report`` is called with
    the number of completed hosts; an exception that it raises ends the wait. Late connections are closed.
    """
    futures = {host: _in_thread(reach, host, options, python) for host in hosts}
    deadline = time.monotonic() + seconds
    pending = set(futures.values())
    try:
        while pending and time.monotonic() < deadline:
            pending = wait(pending, timeout=_REPORT_SECONDS, return_when=FIRST_COMPLETED).not_done
            report(len(hosts) - len(pending))
    except BaseException:
        pending = set(futures.values())
        raise
    finally:
        for future in pending:
            future.add_done_callback(lambda late: None if late.exception() else late.result().close())
    results: list[Connection | Unreachable] = []
    for host, future in futures.items():
        if future in pending:
            results.append(command.explain(host, options.ssh_config, "", "Connection timed out", None))
        else:
            error = future.exception()
            results.append(error if isinstance(error, Unreachable) else future.result())
    return results


@contextlib.contextmanager
def connected(
    hosts: Sequence[Host], options: SshOptions, seconds: float
) -> Iterator[tuple[list[Connection], list[Unreachable]]]:
    """Connect to hosts temporarily; yield the connections within ``seconds`` and the errors of the other hosts."""
    results = reach_all(hosts, options, seconds=seconds)
    connections = [result for result in results if isinstance(result, Connection)]
    try:
        yield connections, [result for result in results if isinstance(result, Unreachable)]
    finally:
        wait([_in_thread(connection.close) for connection in connections], timeout=_CLOSE_SECONDS)


def _in_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in a daemon thread, so that an unresponsive host does not delay the exit of this process."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  re-raised by the future
            future.set_exception(error)

    threading.Thread(target=call, name=f"ssh-{function.__name__}", daemon=True).start()
    return future

"""Hosts reached over OpenSSH as a cluster: one agent on each, started by ``ssh``, starts and ends the ranks there."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import placing
from distdl_jupyter.clusters.agents.agent import Host, HostTrouble, Unreachable
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import Connection, end_all
from distdl_jupyter.clusters.base import Check, Context, NodeInfo, Notice
from distdl_jupyter.clusters.ssh import hosts as hostlist
from distdl_jupyter.clusters.ssh.nodes import SshNodes
from distdl_jupyter.clusters.ssh.options import SshOptions
from distdl_jupyter.clusters.ssh.reach import reach
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.plan import Placement
    from distdl_jupyter.core.spec import JobSpec

#: Hosts that are connected to at the same time.
_AT_ONCE = 32
#: Seconds between two looks whether somebody wants the wait to end.
_POLL_SECONDS = 0.5
_SWEEP_SECONDS = 20.0


class SshCluster(AgentCluster):
    """Runs ranks on hosts that are reached by ssh."""

    name = "ssh"
    title = "SSH hosts"
    Options = SshOptions
    queues = True
    slots = True

    # what is known without asking -----------------------------------------------------------------

    def unavailable(self, options: SshOptions) -> str:
        """Return the remedy when there is no ssh, or no host is named."""
        if shutil.which("ssh") is None:
            return "ssh is not installed. Install the OpenSSH client, for example: apt-get install openssh-client"
        try:
            hostlist.listed(options)
        except InvalidSpec as error:
            return str(error)
        return ""

    def process_count_per_node(self, options: SshOptions, *, use_gpu: bool | None) -> int:
        """Return the slots that the hosts are written with, else the GPUs of the host that has fewest, else 1."""
        slots = [host.slots for host in hostlist.listed(options) if host.slots]
        if slots:
            return min(slots)
        if use_gpu is False:
            return 1
        up = [node.gpus for node in self.nodes(options) if node.state == "up"]
        return max(1, min(up, default=1))

    def validate(self, options: SshOptions) -> None:
        """Refuse options that name no host, or a file or pattern that gives none."""
        hostlist.listed(options)

    def suggestions(self) -> dict[str, list[str]]:
        """Return the hosts of the user's ssh configuration."""
        return {"hosts": hostlist.configured()}

    def detail(self, options: SshOptions) -> str:
        """Return how many hosts there are."""
        try:
            return plural(len(hostlist.listed(options)), "host")
        except InvalidSpec:
            return ""

    def nodes(self, options: SshOptions) -> list[NodeInfo]:
        """Return the hosts as they were seen lately."""
        from distdl_jupyter.clusters.ssh import host_monitor

        return host_monitor.nodes(options)

    def checks(self, options: SshOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
        """Reach every host and look at what a job needs there."""
        from distdl_jupyter.clusters.ssh import connect_all

        return connect_all.checks(options, modules, programs)

    def preview(self, spec: JobSpec, options: SshOptions) -> Placement:
        """Place ranks on the hosts in their order; interfaces and GPUs are known when the hosts were asked."""
        chosen = hostlist.chosen(spec, options)
        return Placement(placing.places(spec, [host.name for host in chosen]), address="", ports=(), interface="")

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SshOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Reach the hosts; after a restart others take the places of those that are gone, or it begins on fewer."""
        chosen = hostlist.chosen(spec, options)
        unreachable = self._reach(chosen, spec, options, context)
        if unreachable and context.restart:
            unreachable = self._replaced(unreachable, spec, options, context)
        if unreachable and len(self._connections) >= (context.least_node_count or len(chosen)):
            return dataclasses.replace(spec, node_count=len(self._connections)), []
        return spec, unreachable

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> SshNodes:
        """Return the hosts."""
        return SshNodes(job, placement, context, self._nodes)

    def _reach(self, chosen: Sequence[Host], spec: JobSpec, options: SshOptions, context: Context) -> list[Unreachable]:
        context.report("stage", f"reaching {plural(len(chosen), 'host')}")
        pool = ThreadPoolExecutor(min(len(chosen), _AT_ONCE))
        reached = [pool.submit(_reached, host, options, spec.python) for host in chosen]
        try:
            _await(reached, context, len(chosen))
        except BaseException:
            for one in reached:
                one.add_done_callback(_close_reached)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        found = [one.result() for one in reached]
        self._connections = [one for one in found if isinstance(one, Connection)]
        return [one for one in found if isinstance(one, Unreachable)]

    def _replaced(
        self, unreachable: Sequence[Unreachable], spec: JobSpec, options: SshOptions, context: Context
    ) -> list[Unreachable]:
        """Let other hosts of the cluster take the places of those that are gone; return for whom there is none."""
        known, spare = self._connections, hostlist.spare(spec, options)[: len(unreachable)]
        if spare:
            self._reach(spare, spec, options, context)
            found, self._connections = self._connections, [*known, *self._connections]
            replaced = zip(found, unreachable, strict=False)
            for one, gone in replaced:
                context.note(Notice("warning", hostlist.replacement(one.host, gone.host), "spare-host"))
            return list(unreachable[len(found) :])
        return list(unreachable)

    # after a supervisor's death ---------------------------------------------------------------------

    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[str]:
        """Kill what is left of a job on its hosts; agents without a supervisor do so themselves within seconds.

        Returns the host of every process that was found. Raises LaunchFailed naming the hosts that do not answer.
        """
        recorded = handle.get("hosts") or []
        if not recorded:
            return []
        options = SshOptions(
            ssh_config=handle.get("ssh_config", ""), python=handle.get("python", ""),
            directory=handle.get("directory", ""),
        )  # fmt: skip
        hosts = [Host(str(one["name"]), str(one["target"])) for one in recorded]
        with ThreadPoolExecutor(min(len(hosts), _AT_ONCE)) as pool:
            found = list(pool.map(lambda host: _swept(job_id, host, options), hosts))
        silent = [one for one in found if isinstance(one, HostTrouble)]
        if silent:
            raise LaunchFailed(
                f"{listing([one.host for one in silent])} cannot be reached: {silent[0].says}",
                code="hosts-unreachable",
                hint=f"Ranks on these hosts stop on their own. {silent[0].remedy}".strip(),
            )
        return [host for one in found if isinstance(one, list) for host in one]


def _reached(host: Host, options: SshOptions, python: str) -> Connection | Unreachable:
    try:
        return reach(host, options, python)
    except Unreachable as error:
        return error


def _await(reached: Sequence[Future[Connection | Unreachable]], context: Context, total: int) -> None:
    """Wait for all, and tell what is there; whoever hears it may want the wait to end."""
    pending = set(reached)
    while pending:
        _, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        context.report("stage", f"connected to {total - len(pending)} of {plural(total, 'host')}")


def _close_reached(one: Future[Connection | Unreachable]) -> None:
    if not one.cancelled() and isinstance(found := one.result(), Connection):
        found.close()


def _swept(job_id: str, host: Host, options: SshOptions) -> list[str] | HostTrouble:
    """Return the host's name for each process that was killed there, or why the host could not be asked."""
    until = time.monotonic() + _SWEEP_SECONDS
    try:
        connection = reach(host, options)
    except HostTrouble as trouble:
        return trouble
    try:
        answer = connection.ask("sweep", max(1.0, until - time.monotonic()), job=job_id, base=options.directory)
        return [host.name] * int(answer["found"])
    except HostTrouble as trouble:
        return trouble
    finally:
        end_all([connection])

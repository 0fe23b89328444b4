"""A cluster of machines on which agents can be started: what is the same however they are reached.

``place`` looks at the machines, chooses the network on which ranks meet, and brings the job's files and data; ``start``
hands them to the run. A kind of cluster adds how an agent is started on each node (``_connect``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.clusters.agents import data, holding, placing, staging
from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.agents.staging import Job
from distdl_jupyter.clusters.base import Cluster, Context, Notice, Run
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.plan import Placement, Plan, RankPorts, RankSlot, with_ports

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Unreachable
    from distdl_jupyter.clusters.agents.checkup import Checkup
    from distdl_jupyter.clusters.agents.network import Common
    from distdl_jupyter.clusters.agents.options import AgentOptions
    from distdl_jupyter.clusters.agents.staging import AgentNode
    from distdl_jupyter.core.spec import JobSpec

#: Nodes that get the job's files at the same time.
_AT_ONCE = 32


class AgentCluster(Cluster):
    """Runs ranks on other machines, each with an agent."""

    complete = False
    far = True
    stages = True
    installs = True
    serves = True
    #: Whether a host may have several nodes of a job.
    several_per_host: ClassVar[bool] = False

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._nodes: list[AgentNode] = []

    @abstractmethod
    def _connect(self, spec: JobSpec, options: Any, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Start an agent on each node, into ``_connections``; return the spec of what can begin, and who is missing.

        Raises DistDLError.
        """

    def _job(self, spec: JobSpec, options: Any, context: Context) -> Job:
        """Return what is brought to the nodes, with the options that all clusters with agents have."""
        return Job(spec, context.folder, options)

    @abstractmethod
    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> AgentNodes:
        """Return ``_nodes`` for a run, to which they belong from now on."""

    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Reach the machines, look at them, and choose the network on which ranks meet."""
        try:
            spec, unreachable = self._connect(spec, options, context)
            job = self._job(spec, options, context)
            found = self._look(unreachable, spec, job.options, context)
            if self.slots:
                found = holding.hold(self._connections, spec, found, context)
            placement = self._placed(spec, ports, found, context)
            placement = with_ports(placement, context.rank_ports, self._ports_of_ranks(placing.agreed(found)))
            self._stage(job, context)
            if context.staging is not None:
                data.bring(spec, self._nodes, job.options.directory or DIRECTORY, context)
        except BaseException:
            self._let_go()
            raise
        return placement

    def _look(
        self, unreachable: Sequence[Unreachable], spec: JobSpec, options: AgentOptions, context: Context
    ) -> Checkup:
        from distdl_jupyter.clusters.agents import checks, checkup

        context.report("stage", f"checking {plural(len(self._connections) + len(unreachable), 'host')}")
        found = checkup.look(
            self._connections, unreachable, options, context.modules, context.programs,
            processes=spec.process_count_per_node, several_per_host=self.several_per_host,
        )  # fmt: skip
        if found.errors:
            raise LaunchFailed(placing.refusal(found.errors), code=found.errors[0].code)
        if spec.use_gpu:
            placing.check_gpus(spec, found)
        for check in found.checks:
            if check.level == "warning" and check.what != checks.READS_DATA:  # the stager says it where it is needed
                context.note(Notice("warning", placing.sentence(check), check.code or "host-check"))
        return found

    def _placed(self, spec: JobSpec, ports: int, found: Checkup, context: Context) -> Placement:
        common = placing.agreed(found)
        first = self._connections[0]
        endpoint = common.endpoint(first.host)
        reply = first.ask("ports", count=ports, address=endpoint.address)
        names = [one.host for one in self._connections]
        context.note(Notice("info", placing.met(spec, names, common), "network"))
        return Placement(
            ranks=placing.places(spec, names, found, common),
            address=endpoint.address,
            ports=tuple(int(port) for port in reply["ports"]),
            interface=common.interface or endpoint.interface,
            network=common.network,
            remote_shell=(
                str(found.facts[first.host]["python"]["executable"]),
                "-P",
                "-m",
                "distdl_jupyter.node.mpi_shell",
            ),
        )

    def _ports_of_ranks(self, common: Common) -> Callable[[RankSlot, int], RankPorts]:
        """Return what gives a rank ports of its own on its host."""

        def rank_ports(place: RankSlot, ports: int) -> RankPorts:
            address = common.endpoint(place.host).address
            reply = self._connections[place.node].ask("ports", count=ports, address=address)
            return address, tuple(int(port) for port in reply["ports"])

        return rank_ports

    def _stage(self, job: Job, context: Context) -> None:
        """Give every host the job's files, where it does not see them."""
        self._nodes = staging.prepare(job, self._connections)
        apart = [node for node in self._nodes if not node.shared]
        if not apart:
            context.report("stage", "nothing to copy")
            return
        names = listing([node.host for node in apart])
        context.report("stage", f"copying {size(staging.size(job))} to {names}")
        with ThreadPoolExecutor(min(len(apart), _AT_ONCE)) as pool:
            list(pool.map(lambda node: staging.copy(job, node), apart))
        if job.spec.keep_checkpoints:
            share, keep = ("shares", "it keeps") if len(apart) == 1 else ("share", "they keep")
            text = (
                f"{names} {share} no folder with this machine, so {keep} all checkpoints until the job ends. "
                f"keep_checkpoints ({job.spec.keep_checkpoints}) is applied then."
            )
            context.note(Notice("info", text, "checkpoints"))
        lacking = [node.host for node in apart if node.work_is_empty]
        if lacking:
            text = placing.empty_work(lacking, job.spec.working_directory)
            context.note(Notice("info", text, "working-directory"))

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start services, then ranks (or the launcher that starts them)."""
        limits.allow_files(4 * spec.process_count)
        job = self._job(spec, self.Options(**spec.cluster_options), context)
        nodes = self._nodes_of(job, placement, context)
        run = agent_run.start(placement, plan, context, nodes)
        self._connections, self._nodes = [], []
        return run

    def _let_go(self) -> None:
        end_all(self._connections)
        self._connections = []

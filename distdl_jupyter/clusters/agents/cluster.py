"""Base class of clusters whose machines run agents; subclasses start the agents (``_connect``)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import msgspec

from distdl_jupyter.clusters import base
from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import AgentNode, ReachError
from distdl_jupyter.clusters.agents.checkup import DATA_PACKAGE, Checkup, check_hosts
from distdl_jupyter.clusters.agents.connection import DEFAULT_DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Cluster, Context, NodeCheck, Run, RunNotice
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement, Plan, RankPorts, RankSlot, assign_ports
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node.slots import QueuePosition

#: The maximum number of nodes to which the job's files are copied in parallel.
_MAX_PARALLEL = 32
#: Seconds between two requests for the job's slots on a host.
_POLL_SECONDS = 0.5


class AgentCluster(Cluster):
    """Runs ranks on other machines, each with an agent."""

    has_agents = True
    is_remote = True
    can_install = True
    #: Whether several nodes of a job may run on one host.
    can_share_host: ClassVar[bool] = False

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._nodes: list[AgentNode] = []
        #: The job's allocation from a scheduler. After the start, the nodes of the job own it.
        self._allocation = contextlib.ExitStack()

    def default_options(self) -> dict[str, Any] | None:
        """Return None, because a user must name the machines."""
        return None

    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs that a job uses on each node, 1 if it uses none."""
        return max(1, options.gpus_per_node) if use_gpu is not False else 1

    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Place rank r on node r // process_count_per_node of nodes whose names are not known yet."""
        self.validate(options)
        return preview_placement(spec, options.gpus_per_node)

    @abstractmethod
    def _connect(self, spec: JobSpec, options: Any, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Start an agent on each node and append its connection to ``_connections``.

        Return the spec of the job that can start, and the unreachable hosts. Raises DistDLError.
        """

    def _make_job(self, spec: JobSpec, options: Any, context: Context) -> StagedJob:
        return StagedJob(spec, context.folder, options)

    @abstractmethod
    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> AgentNodes:
        """Return the job's nodes with ``_nodes``; the run owns and closes them."""

    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Connect to the machines, check them, and select the network for the ranks."""
        try:
            spec, unreachable = self._connect(spec, options, context)
            job = self._make_job(spec, options, context)
            checkup = self._check(unreachable, spec, job.options, context)
            if self.has_slots:
                checkup = _acquire_slots(self._connections, spec, checkup, context)
            placement = self._build_placement(spec, ports, checkup, context)
            self._stage(job, context)
            if context.staging is not None:
                staging.stage_on_hosts(spec, self._nodes, job.options.directory or DEFAULT_DIRECTORY, context)
        except BaseException:
            self._release_nodes()
            raise
        return placement

    def _check(self, unreachable: Sequence[ReachError], spec: JobSpec, options: Any, context: Context) -> Checkup:
        context.report("stage", f"checking {plural(len(self._connections) + len(unreachable), 'host')}")
        result = check_hosts(
            self._connections, unreachable, options, context.modules, context.programs,
            processes=spec.process_count_per_node, can_share_host=self.can_share_host,
        )  # fmt: skip
        if result.errors:
            raise LaunchFailed("\n".join(map(_format_check, result.errors)), code=result.errors[0].code)
        for host, facts in result.facts.items():
            memory = (facts.get("memory") or {}).get("total")
            limits_ = (facts.get("cores"), memory) if self.has_slots else (None, None)
            base.refuse_excess(spec, spec.process_count_per_node, len(facts.get("gpus") or ()), *limits_, host)
        for check in result.checks:
            if check.level == "warning" and check.what != DATA_PACKAGE:  # stagers report it if data is read
                context.note(RunNotice("warning", _format_check(check), check.code or "host-check"))
        return result

    def _build_placement(self, spec: JobSpec, ports: int, checkup: Checkup, context: Context) -> Placement:
        common = checkup.network
        assert common is not None, "without a common network, the checks have errors"
        endpoints = [common.get_endpoint(connection.host) for connection in self._connections]

        def reserve(slot: RankSlot, count: int) -> RankPorts:
            address = endpoints[slot.node].address
            reply = self._connections[slot.node].ask("ports", count=count, address=address)
            return address, tuple(int(port) for port in reply["ports"])

        names = [connection.host for connection in self._connections]
        network = f"{common.network} ({common.interface})" if common.interface else common.network
        text = f"{spec.compute_target}: connected to {', '.join(names)}."
        text += f" Ranks communicate over {network}." if len(names) > 1 else ""
        context.note(RunNotice("info", text, "network"))
        python = str(checkup.facts[names[0]]["python"]["executable"])
        ranks = build_rank_slots(spec, names, checkup)
        address, reserved_ports = reserve(ranks[0], ports)
        placement = Placement(
            ranks=ranks,
            address=address,
            ports=reserved_ports,
            interface=common.interface or endpoints[0].interface,
            network=common.network,
            remote_shell=(python, "-P", "-m", "distdl_jupyter.node.mpi_shell"),
        )
        return assign_ports(placement, context.rank_ports, reserve)

    def _stage(self, job: StagedJob, context: Context) -> None:
        """Copy the job's files to every host that does not see them."""
        self._nodes = staging.prepare(job, self._connections)
        unshared = [node for node in self._nodes if not node.is_shared]
        if not unshared:
            context.report("stage", "nothing to copy")
            return
        context.report("stage", f"copying the job's files to {listing([node.host for node in unshared])}")
        with ThreadPoolExecutor(min(len(unshared), _MAX_PARALLEL)) as pool:
            list(pool.map(lambda node: staging.copy(job, node), unshared))
        directory = job.spec.working_directory
        if hosts := [node.host for node in unshared if node.directory != directory]:
            verb = "has" if len(hosts) == 1 else "have"
            text = f"{listing(hosts)} {verb} no folder {directory}, so ranks there run in an empty folder. "
            text += "Put the files that ranks read in a folder that all hosts share."
            context.note(RunNotice("info", text, "working-directory"))

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start services, then ranks or their launcher."""
        machine.raise_file_limit(4 * spec.process_count)
        job = self._make_job(spec, self.Options(**spec.cluster_options), context)
        nodes = self._make_nodes(job, placement, context)
        run = agent_run.start(placement, plan, context, nodes)
        self._connections, self._nodes = [], []
        return run

    def _release_nodes(self) -> None:
        end_all(self._connections)
        self._connections = []
        self._allocation.close()


def _acquire_slots(connections: Sequence[Connection], spec: JobSpec, checkup: Checkup, context: Context) -> Checkup:
    """Wait for slots in the queue of every host (``node.slots``); return the checkup with only the GPUs of the job."""
    facts = dict(checkup.facts)
    context.report("queue", "")
    # All jobs use the same order of hosts, which prevents deadlocks.
    for connection in sorted(connections, key=lambda item: (str(facts[item.host].get("host") or ""), item.host)):
        host, gpus = connection.host, facts[connection.host].get("gpus") or ()
        labels = {str(gpu["uuid"]): str(gpu["number"]) for gpu in gpus}
        need = base.compute_need(spec, spec.process_count_per_node, list(labels))
        fields: dict[str, Any] = {"job": spec.id, "name": spec.name, "need": [need.gpus, need.candidates, need.amounts]}
        while need:
            priority = context.get_priority()
            answer = connection.ask("slots", **fields, priority=priority, number=context.queue_number)
            if answer["held"] is not None:
                if need.gpus:
                    facts[host] = {**facts[host], "gpus": [gpu for gpu in gpus if gpu["uuid"] in answer["held"]]}
                break
            position = msgspec.convert(answer["position"], QueuePosition)
            context.note_position(base.build_view(position, need, labels, priority, host, limits=answer["limits"]))
            time.sleep(_POLL_SECONDS)
    return dataclasses.replace(checkup, facts=facts)


# placement of ranks ----------------------------------------------------------------------------


def build_rank_slots(spec: JobSpec, names: Sequence[str], checkup: Checkup | None = None) -> tuple[RankSlot, ...]:
    """Return a slot for each rank, with its GPU, interface and cores if the host has reported them."""
    per_node, per_rank = spec.process_count_per_node, spec.gpus or 1
    common, slots = checkup.network if checkup is not None else None, []
    for rank in range(spec.process_count):
        node, local_rank = divmod(rank, per_node)
        facts = checkup.facts[names[node]] if checkup is not None else {}
        cores = max(1, int(facts.get("cores") or 1) // spec.most_processes_per_node) if facts else 0
        gpus = [int(gpu["number"]) for gpu in facts.get("gpus") or ()] if spec.use_gpu is not False else []
        slots.append(
            RankSlot(
                rank, node, names[node], local_rank,
                gpu=gpus[local_rank * per_rank % len(gpus)] if gpus else None,
                gpus=tuple(gpus[local_rank * per_rank : (local_rank + 1) * per_rank]) if per_rank > 1 else (),
                interface=common.get_endpoint(names[node]).interface if common is not None else "",
                cores=spec.cores or cores,
            )
        )  # fmt: skip
    return tuple(slots)


def preview_placement(spec: JobSpec, gpus: int, configured: object = None) -> Placement:
    """Return the placement on nodes whose names are not known yet. Raises InvalidSpec if they have too few GPUs.

    ``gpus`` is the job's number of GPUs on each node, ``configured`` the value of gpus_per_node if it differs.
    """
    if spec.use_gpu and gpus < spec.process_count_per_node:
        value = gpus if configured is None else configured
        needed = f"use_gpu needs {plural(spec.process_count_per_node, 'GPU')} on each node"
        text = f"{needed}, but the cluster option 'gpus_per_node' is {value}."
        hint = f"Set the cluster option 'gpus_per_node' to {spec.process_count_per_node}."
        raise InvalidSpec(text, code="gpus-per-node-too-few", field="use_gpu", hint=hint)
    names = [f"node-{node}" for node in range(spec.node_count)]
    return Placement(build_rank_slots(spec, names), address="", ports=(), interface="")


def _format_check(check: NodeCheck) -> str:
    """Return a check as one line: ``node-c: torch 2.5.1, the other hosts have 2.13.0. Run pip install ...``."""
    remedy = f"Run {check.remedy}" if check.remedy[:1].islower() else check.remedy
    return f"{check.node}: {check.message.rstrip('.')}. {remedy}".removeprefix(": ").rstrip()

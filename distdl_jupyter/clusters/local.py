"""This machine as a cluster: ranks are child processes of the supervisor, and multiple nodes are emulated.

Ranks on emulated nodes have the rank, local rank, node (cross) rank and host name as on real nodes; memory, disk and
network are shared. Imports that only a supervisor needs are local to functions, which keeps the first submission fast.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import base
from distdl_jupyter.clusters.base import Cluster, Context, NodeInfo, Run
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, Plan, QueueView, RankPorts, RankSlot, assign_ports, option
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import devices, slots
from distdl_jupyter.node.devices import cores
from distdl_jupyter.node.ports import Ports

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import NodeData
    from distdl_jupyter.data.staging import JobStaging


#: The rendezvous address of ranks on one machine.
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of this machine."""

    oversubscribe: bool = option(default=False, help_="allow more than 8 processes per core (64 on a small machine)")
    wait: bool = option(default=True, help_="wait for GPUs, cores and memory of other jobs; if false, the job fails")


class LocalCluster(Cluster):
    """Runs ranks on this machine."""

    name = "local"
    title = "Local"
    Options = LocalOptions
    has_agents = True
    can_install = True
    has_slots = True

    def __init__(self) -> None:
        self._ports = Ports()
        self._slot: slots.QueueSlot | None = None
        #: The numbers of the job's GPUs, or None until they are acquired.
        self._gpu_numbers: list[int] | None = None
        self._staged: dict[int, NodeData] = {}

    def unavailable(self, options: Any) -> str:
        """Return "" on Linux and macOS, else the remedy."""
        if sys.platform == "win32":
            return "Ranks do not run natively on Windows. Use WSL (Windows Subsystem for Linux)."
        return ""

    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs, or 1 without GPUs."""
        return max(1, len(machine.list_gpu_numbers())) if use_gpu is not False else 1

    def detail(self, options: Any) -> str:
        """Return the cores and GPUs of this machine: "2 cores, no GPU"."""
        count = len(machine.list_gpu_numbers())
        return f"{plural(cores(), 'core')}, {plural(count, 'GPU') if count else 'no GPU'}"

    def list_nodes(self, options: Any) -> list[NodeInfo]:
        """Return this machine; emulated nodes are not listed."""
        devices, load = machine.list_gpus(), round(os.getloadavg()[0], 1)
        name, gpu_name = socket.gethostname(), next((gpu.name for gpu in devices), "")
        python = platform.python_version()
        return [NodeInfo(name, gpus=len(devices), gpu_name=gpu_name, cores=cores(), python=python, load=load)]

    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Stage the job's data, then reserve ports for the placement."""
        # Lost emulated nodes are not replaced, so that elastic jobs can be tested on one machine.
        if context.min_node_count is not None and context.lost_nodes:
            node_count = max(context.min_node_count, spec.node_count - len(context.lost_nodes))
            spec = dataclasses.replace(spec, node_count=node_count)
        placement = self._build_placement(spec, options, self._gpu_numbers)

        def reserve(slot: RankSlot, count: int) -> RankPorts:
            return slot.address or _ADDRESS, tuple(self._ports.reserve(count, _ADDRESS))

        if context.staging is not None:
            self._staged = _run_stagers(spec, placement, context.staging, context)
        try:
            reserved_ports = tuple(self._ports.reserve(ports, _ADDRESS))
            placement = assign_ports(placement, context.rank_ports, reserve)
        except OSError as error:
            raise LaunchFailed(f"Cannot reserve ports for the ranks: {error}.", code="local-ports-not-free") from error
        return dataclasses.replace(placement, ports=reserved_ports)

    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Place rank r on node r // process_count_per_node; assign GPUs in order, as if all were free."""
        return self._build_placement(spec, options, None)

    def acquire(
        self, spec: JobSpec, options: Any, *, blocked: bool = False, number: int | None = None
    ) -> QueueView | None:
        """Acquire GPUs, cores and memory for all processes, or return the position in the queue."""
        devices = machine.list_gpus() if spec.use_gpu is not False else ()
        need = base.compute_need(spec, spec.process_count, [gpu.uuid for gpu in devices])
        if not need and not blocked and self._slot is None:
            return None
        if self._slot is None:
            parent = os.path.basename(os.environ.get("DISTDL_JOB_DIR", ""))  # noqa: PTH119  no file is accessed
            # A rank that submits this job shares its slots with it; waiting for them would be a deadlock.
            if not blocked and parent in (job.job for job in slots.read_entries() if job.has_resources and job.is_own):
                return None
            self._slot = slots.QueueSlot(spec.id, spec.name, queued_at=number)
        position = self._slot.acquire(need, priority=spec.priority, blocked=blocked)
        if position is None:
            numbers = {gpu.uuid: gpu.number for gpu in devices}
            self._gpu_numbers = [numbers[uuid] for uuid in self._slot.gpus] if need.gpus else None
            return None
        view = base.build_view(position, need, {gpu.uuid: str(gpu.number) for gpu in devices}, spec.priority)
        if not blocked and not position.problem and not getattr(options, "wait", True):
            self.release()
            text = f"wait=False is set, but the job is {view.why}."
            hint = "Remove wait=False to wait, or request fewer resources, for example with use_gpu=False."
            raise LaunchFailed(text, code="job-does-not-wait", hint=hint)
        return view

    def release(self) -> None:
        """Release the resources or the queue position of a job that was not started."""
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    def _build_placement(self, spec: JobSpec, options: Any, gpu_numbers: list[int] | None) -> Placement:
        """Place the ranks on the GPUs with these numbers, or on all GPUs of this machine for None."""
        if gpu_numbers is None:
            gpu_numbers = machine.list_gpu_numbers() if spec.use_gpu is not False else []
        oversubscribe, gpu_count = getattr(options, "oversubscribe", False), len(gpu_numbers)
        reason, remedy = machine.check_rank_count(spec.process_count, cores(), oversubscribe=oversubscribe)
        if reason:
            field = "process_count_per_node"
            raise InvalidSpec(f"{reason}.", code="too-many-local-processes", field=field, hint=remedy)
        base.refuse_excess(spec, spec.process_count, gpu_count, devices.cores(), devices.read_memory_limit())
        is_emulated, host_name = spec.node_count > 1, socket.gethostname()
        shell: tuple[str, ...] = ()
        if is_emulated:
            from distdl_jupyter.clusters import emulated_node

            shell = emulated_node.get_shell()
        ranks, per_rank = [], spec.gpus or 1
        for rank in range(spec.process_count):
            node, local_rank = divmod(rank, spec.process_count_per_node)
            host, first_index = f"node-{node}" if is_emulated else host_name, rank * per_rank
            gpu = gpu_numbers[first_index % gpu_count] if gpu_numbers else None
            gpus = tuple(gpu_numbers[first_index : first_index + per_rank]) if per_rank > 1 else ()
            ranks.append(RankSlot(rank, node, host, local_rank, gpu=gpu, gpus=gpus))
        return Placement(
            ranks=tuple(ranks),
            address=_ADDRESS,
            ports=(),
            interface="lo0" if sys.platform == "darwin" else "lo",
            cores_per_rank=spec.cores or max(1, cores() // spec.most_processes),
            emulated=is_emulated,
            remote_shell=shell,
        )

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start services, then all ranks or the launcher that starts them."""
        from distdl_jupyter.clusters.agents import run
        from distdl_jupyter.clusters.agents.agent import LocalNodes

        return run.start(placement, plan, context, LocalNodes(spec, context, self._ports, self._slot, self._staged))

    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[int]:
        """Kill every local process with the job's mark; remove its pipes and data folder, but keep the cache."""
        from distdl_jupyter.node import data_cache, processes, run_dir

        killed = processes.kill_job(job_id)
        run_dir.sweep(job_id)
        data_cache.remove_links(job_id)
        return sorted(killed)


def _run_stagers(spec: JobSpec, placement: Placement, staging: JobStaging, context: Context) -> dict[int, NodeData]:
    """Run a stager for each node, including emulated ones; return the paths of the data by node."""
    from distdl_jupyter.clusters.agents.agent import LocalAgent
    from distdl_jupyter.clusters.agents.staging import Stager, run_stagers

    hosts = {slot.node: slot.host for slot in placement.ranks}
    prefixes = ("AWS_", "GOOGLE_", "PIP_", "UV_")  # settings of object stores and package indexes
    inherited = context.inherited.items()
    variables = {name: value for name, value in inherited if name.startswith(prefixes) or not is_secret(name, value)}
    agent = LocalAgent(spec, context.folder.path)

    def start(node: int) -> Stager:
        return Stager(node, hosts[node], agent, "", {}, variables)  # folders of this machine are used directly

    try:
        return run_stagers(start, sorted(hosts), staging, context.report)
    except OSError as error:
        raise machine.make_launch_error("Cannot start the program that copies the data", error) from error
    finally:
        agent.close()

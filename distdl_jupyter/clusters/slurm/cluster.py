"""Slurm clusters: jobs wait in Slurm's queue, run on nodes that it selects, and continue without a supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents.agent import AgentNode, Host, ReachError
from distdl_jupyter.clusters.agents.cluster import AgentCluster, preview_placement
from distdl_jupyter.clusters.agents.connection import AGENT_TIMEOUT, DEFAULT_DIRECTORY, end_all, start_all
from distdl_jupyter.clusters.agents.staging import StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, NodeInfo, Run
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.clusters.slurm.job import SlurmJob, SlurmNodes
from distdl_jupyter.clusters.slurm.script import SlurmOptions
from distdl_jupyter.clusters.ssh import SshLink
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement, QueuedJob, QueueView, RankSlot
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder, create_id

#: Seconds to wait for Slurm to end a job that ``sweep`` has killed.
_SWEEP_SECONDS = 15.0
#: Seconds between two polls for the nodes.
_POLL_SECONDS = 0.1
#: Seconds for which a check waits for a free node.
_NODE_SECONDS = 5
#: Slurm's time limit for the check of a node, in minutes.
_LIMIT_MINUTES = 1
#: Timeout in seconds for the check of a node.
_CHECK_SECONDS = 12.0
#: The name of the checked node until the node itself reports one.
_NODE_NAME = "a node"
#: Python code that reads an agent's first program from standard input and runs it.
_RUN_PROGRAM = "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"


class SlurmCluster(AgentCluster):
    """Runs ranks on the nodes of a Slurm job, with one agent on each node."""

    name = "slurm"
    title = "Slurm"
    Options = SlurmOptions
    has_queue = True
    can_attach = True

    def __init__(self) -> None:
        super().__init__()
        self._slurm: SlurmJob | None = None
        self._interruption = ""

    def unavailable(self, options: SlurmOptions) -> str:
        """Return the remedy if Slurm's commands are missing."""
        return commands.explain_missing_commands()

    def process_count_per_node(self, options: SlurmOptions, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs that a job uses on each node, or 1 if it uses none."""
        return max(1, options.gpus) if use_gpu is not False else 1

    def detail(self, options: SlurmOptions) -> str:
        """Return the partition and the number of GPUs per node."""
        partition = f"partition {options.partition}" if options.partition else "default partition"
        return f"{partition}, {options.gpus_per_node} GPUs per node" if options.gpus_per_node else partition

    def max_requeues(self, options: SlurmOptions) -> int:
        """Return how often an interrupted job is requeued."""
        return options.requeue

    def list_nodes(self, options: SlurmOptions) -> list[NodeInfo]:
        """Return the nodes of the partition. Raises DistDLError if Slurm does not respond."""
        return commands.list_nodes(options.partition)

    def list_queue(self, options: SlurmOptions) -> list[QueuedJob]:
        """Return this user's jobs in Slurm."""
        return commands.list_queue()

    def run_checks(
        self, options: SlurmOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check Slurm, a test submission and the nodes; if they pass, also the software of one free node."""
        if commands.explain_missing_commands():
            problem = "Slurm is not installed"
            return [NodeCheck("", "Slurm", "error", problem, commands.MISSING_REMEDY, "slurm-missing")]
        try:
            nodes = commands.list_nodes(options.partition)
        except commands.SlurmFailed as error:
            remedy = error.hint or "Check that Slurm's controller is running: scontrol ping"
            return [NodeCheck("", "Slurm", "error", error.message, remedy, error.code)]
        rows = [NodeCheck("", "Slurm", "ok", "the controller responds")]
        spec = JobSpec(id=create_id(), name="check", process_count_per_node=1)
        arguments = script.build_sbatch_arguments(spec, options, {}, Path("/tmp"), "check.out")  # noqa: S108 - not used
        try:
            commands.run("sbatch", "--test-only", *arguments, "--wrap=true")
            partition = f"partition {options.partition}" if options.partition else "the default partition"
            rows.append(NodeCheck("", "Submission", "ok", f"{partition} accepts jobs"))
        except commands.SlurmFailed as error:
            code, remedy = commands.explain_sbatch_error(error)
            rows.append(NodeCheck("", "Submission", "error", error.message, remedy, code))
        down_nodes = [f"{node.name} ({node.detail})" for node in nodes if node.state == "down"]
        if nodes and len(down_nodes) == len(nodes):
            remedy = "Ask the administrators, or set another partition."
            rows.append(NodeCheck("", "Nodes", "error", "no node is up", remedy, "slurm-nodes"))
        elif down_nodes:
            text = f"{len(down_nodes)} of {len(nodes)} nodes are down: {listing(down_nodes)}"
            remedy = "Meanwhile, jobs run on the other nodes."
            rows.append(NodeCheck("", "Nodes", "warning", text, remedy, "slurm-node"))
        else:
            rows.append(NodeCheck("", "Nodes", "ok", f"{plural(len(nodes), 'node')} up"))
        max_gpus = max((node.gpus for node in nodes), default=0)
        if max_gpus and not options.gpus:
            text = f"nodes have up to {plural(max_gpus, 'GPU')}, but jobs do not request any"
            rows.append(NodeCheck("", "GPUs", "info", text, f"To use them, set gpus_per_node to {max_gpus}."))
        if any(check.level == "error" for check in rows):
            return rows
        return [*rows, *_check_software(options, modules, programs)]

    def preview(self, spec: JobSpec, options: SlurmOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Slurm names the nodes when the job starts."""
        placement = preview_placement(spec, options.gpus, options.gpus_per_node or "not set")
        gpus = options.gpus if spec.use_gpu is not False else 0
        ranks = (dataclasses.replace(slot, gpu=slot.local_rank % gpus if gpus else None) for slot in placement.ranks)
        return dataclasses.replace(placement, ranks=tuple(ranks))

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SlurmOptions, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Submit the job, wait until Slurm starts it, and connect to its agents."""
        job = _find_submitted(context.handle, context) if context.handle is not None else None
        self._slurm = slurm = job or self._submit(spec, options, context)
        slurm.start()
        slurm.poll_soon()
        self._wait_until(slurm.list_hosts, "queue", context)
        for node, host in enumerate(slurm.list_hosts()):
            self._connections.append(slurm.connect(node, host, takeover=job is not None))
            self._connections[-1].start()
        self._wait_until(self._all_agents_connected, "stage", context)
        return spec, []

    def _submit(self, spec: JobSpec, options: SlurmOptions, context: Context) -> SlurmJob:
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        secrets = {name: context.variables[name] for name in spec.secret_variables if name in context.variables}
        try:
            script.require_containers(options)
            if directory.is_copied:
                context.report("stage", "copying the job's files")
            directory.write(context.folder, spec, options)
            context.report("queue", "submitting to Slurm")
            job = script.claim_task(directory, spec, options, secrets, context)
            if not job:
                extra = [*([f"--comment={spec.id}"] if spec.group else []), str(directory.batch)]
                output = directory.output.name
                arguments = script.build_sbatch_arguments(spec, options, secrets, directory.run, output, *extra)
                job = commands.submit(arguments, secrets)
                context.record_handle(directory.handle(job))
        except commands.SlurmFailed as error:
            directory.remove()
            code, remedy = commands.explain_sbatch_error(error)
            raise LaunchFailed(error.message, code=code, hint=remedy) from error
        except OSError as error:
            raise script.make_unusable_error(error, directory.job) from error
        return SlurmJob(directory, job)

    def _all_agents_connected(self) -> bool:
        return all(connection.handshake_done.is_set() for connection in self._connections)

    def _wait_until(self, condition: Callable[[], object], phase: str, context: Context) -> None:
        """Wait for ``condition`` and report why the job has not started. Raises LaunchFailed if the job ends."""
        slurm = self._slurm
        assert slurm is not None, "a job was submitted"
        while not condition():
            for notice in slurm.take_notices():
                context.note(notice)
            if self._connections:
                slurm.on_output(slurm.read_output())
            if slurm.has_ended or any(connection.lost for connection in self._connections):
                raise slurm.make_error()
            state, text = slurm.state, "waiting for its agents"
            if state is None:
                text = "submitted"
            elif state.is_pending:
                text = commands.describe_waiting(state)
                reason = f"Slurm job {slurm.job}: {text}"
                context.note_position(QueueView(position=0, of=0, why=reason, host="Slurm", is_fixed=True))
            context.report(phase, f"Slurm job {slurm.job}: {text}")
            time.sleep(_POLL_SECONDS)

    def _make_job(self, spec: JobSpec, options: SlurmOptions, context: Context) -> StagedJob:
        """Return the job's files as the nodes see them."""
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        spec = dataclasses.replace(spec, working_directory="")
        # Agents use ``directory`` for data on their local disks.
        return StagedJob(spec, JobFolder(directory.job), dataclasses.replace(options, directory=options.data_directory))

    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> SlurmNodes:
        assert self._slurm is not None, "the nodes are connected"
        slurm, self._slurm = self._slurm, None
        return SlurmNodes(job, placement, context, self._nodes, slurm)

    def _release_nodes(self) -> None:
        if self._slurm is not None:
            state = self._slurm.state
            if state is not None and not state.is_pending:  # canceling it first would change the reason
                self._interruption = self._slurm.why_interrupted()
            if not self._connections or not self._all_agents_connected():
                self._slurm.cancel()
            super()._release_nodes()
            self._slurm.close()
            self._slurm = None

    def why_interrupted(self) -> str:
        """Return why Slurm ended the job before its ranks ran."""
        return self._interruption

    # continue after the supervisor has died ----------------------------------------------------------

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read_offsets: Mapping[tuple[int, str], int]
    ) -> Run:
        """Connect to the agents of a started job through their files. Raises LaunchFailed if its folder was deleted."""
        slurm = _find_submitted(handle, context)
        if slurm is None:
            raise LaunchFailed("The array task of the job belongs to another trial.", code="slurm-task-taken")
        slurm.has_run = True
        slurm.start()
        hosts = [str(node["host"]) for node in handle["nodes"]]
        connections = [slurm.connect(node, host, takeover=True) for node, host in enumerate(hosts)]
        nodes = [
            AgentNode(connection, str(slurm.directory.job), "", str(node["run"]))
            for connection, node in zip(connections, handle["nodes"], strict=True)
        ]
        machine.raise_file_limit(4 * spec.process_count)
        slots = (RankSlot(rank, node, hosts[node], local_rank) for rank, node, local_rank in handle["ranks"])
        placement = Placement(tuple(slots), address="", ports=(), interface="")
        job = self._make_job(spec, SlurmOptions(**spec.cluster_options), context)
        position = slurm.directory.output.stat().st_size
        slurm_nodes = SlurmNodes(job, placement, context, nodes, slurm, position)
        slurm.on_output(slurm.read_output())
        run = agent_run.resume(placement, context, slurm_nodes, handle, read_offsets)
        for connection in connections:
            connection.start()
        return run

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Kill the job and wait until Slurm has ended it; without a handle, find it by name. Raises SlurmTimeout."""
        if "link" in handle and not script.points_to(Path(handle["link"]), Path(handle["folder"], handle["run"])):
            return []
        jobs = [str(handle["slurm_job"])] if handle.get("slurm_job") else commands.find_jobs(job_id)
        running_jobs = [job for job in jobs if not commands.has_ended(job)]
        for job in running_jobs:
            # A plain scancel would send TERM first and wait (KillWait).
            for arguments in (("--signal=KILL", f"{job}.0"), ("--signal=KILL", "--batch", job), (job,)):
                commands.cancel(*arguments)
            deadline = time.monotonic() + _SWEEP_SECONDS
            while not commands.has_ended(job) and time.monotonic() < deadline:
                time.sleep(0.2)
        return [f"Slurm job {job}" for job in running_jobs]

    def close_group(self, group: Group, options: SlurmOptions) -> None:
        """Remove the unclaimed tasks of a sweep's job array from the queue."""
        script.close_array(group)


def _find_submitted(handle: Mapping[str, Any], context: Context) -> SlurmJob | None:
    """Return the job that another supervisor submitted, or None if another trial has claimed its array task.

    Raises LaunchFailed if its folder was deleted.
    """
    directory = str(Path(str(handle["folder"])).parent) if handle.get("copied") else ""
    files = script.JobDirectory(context.folder, directory, context.restart)
    if not files.run.is_dir():
        raise LaunchFailed(f"The job's folder for Slurm no longer exists: {files.run}.", code="slurm-folder-gone")
    if "link" in handle:
        with contextlib.suppress(OSError):  # the array's folder was deleted
            files.claim_task(Path(handle["link"]))
        if files.link is None:
            return None
    return SlurmJob(files, str(handle["slurm_job"]))


def _check_software(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Check a free node with an agent that srun starts there."""
    python = options.python or ("python3" if options.container_image else sys.executable)
    selection = {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint")}
    command = [
        "srun", "--quiet", "--unbuffered", "--job-name=distdl-check", "--nodes=1", "--ntasks=1",
        f"--immediate={_NODE_SECONDS}", f"--time={_LIMIT_MINUTES}", "--mpi=none", "--export=NONE", "--chdir=/",
        *(f"--{name}={value}" for name, value in selection.items() if value),
        *script.build_container_arguments(options),
        "/bin/bash", "-lc", f'{options.setup}\nexec "$0" -c "$1"', python, _RUN_PROGRAM,
    ]  # fmt: skip
    program = package.build_first_input(python, DEFAULT_DIRECTORY, [AGENT_TIMEOUT]).partition(b"\n")[2]
    try:
        link = SshLink(_NODE_NAME, command, commands.build_environment())
        connections = start_all([(Host(_NODE_NAME, ""), link)], program)
    except ReachError as error:
        if re.search("immediate|requested nodes are busy", error.reason, re.IGNORECASE):
            return [NodeCheck("", "Packages", "info", "nodes were not checked: no node is free")]
        message = f"nodes were not checked. {error.reason}"
        remedy = "Check that this command works: srun hostname"
        return [NodeCheck("", "Packages", "warning", message, remedy, "slurm-packages")]
    try:
        result = checkup.check_hosts(connections, [], options, modules, programs, seconds=_CHECK_SECONDS)
    finally:
        end_all(connections)
    name = str(result.facts.get(_NODE_NAME, {}).get("host") or _NODE_NAME)
    rows = [dataclasses.replace(check, node=name) if check.node == _NODE_NAME else check for check in result.checks]
    # srun uses no host keys, one node needs no common network, and the files of jobs are not on this node.
    return [check for check in rows if check.what not in ("Host key", "Network", "Code")]

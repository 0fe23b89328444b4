"""Slurm clusters: jobs wait in Slurm's queue, run on nodes that it selects, and continue without a supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents.agent import AgentNode, Unreachable
from distdl_jupyter.clusters.agents.cluster import AgentCluster, before_contact
from distdl_jupyter.clusters.agents.staging import StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, NodeInfo, Run
from distdl_jupyter.clusters.slurm import array, checks, commands, script, text
from distdl_jupyter.clusters.slurm.job import SlurmJob, SlurmNodes
from distdl_jupyter.clusters.slurm.script import SlurmOptions
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.queue import QueuedJob
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder

#: Timeout in seconds for the end of a job that ``sweep`` has canceled.
_SWEEP_SECONDS = 15.0
#: Seconds between two polls for the nodes.
_POLL_SECONDS = 0.1


class SlurmCluster(AgentCluster):
    """Runs ranks on the nodes of a Slurm job, with one agent on each node."""

    name = "slurm"
    title = "Slurm"
    Options = SlurmOptions
    queues = True
    can_attach = True

    def __init__(self) -> None:
        super().__init__()
        self._slurm: SlurmJob | None = None
        self._interrupted = ""

    def unavailable(self, options: SlurmOptions) -> str:
        """Return the remedy if Slurm's commands are missing."""
        return commands.missing_commands()

    def process_count_per_node(self, options: SlurmOptions, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs that a job uses on each node, 1 if it uses none."""
        return max(1, options.gpus) if use_gpu is not False else 1

    def detail(self, options: SlurmOptions) -> str:
        """Return the partition and the GPUs per node."""
        parts = [f"partition {options.partition}" if options.partition else "default partition"]
        if options.gpus_per_node:
            parts.append(f"{options.gpus_per_node} GPUs per node")
        return ", ".join(parts)

    def requeues(self, options: SlurmOptions) -> int:
        """Return how often an interrupted job is requeued."""
        return options.requeue

    def nodes(self, options: SlurmOptions) -> list[NodeInfo]:
        """Return the partition's nodes. Raises DistDLError if Slurm does not respond."""
        return [text.node(fields) for fields in commands.nodes(options.partition)]

    def list_queue(self, options: SlurmOptions) -> list[QueuedJob]:
        """Return the jobs in the cluster's partition, or in all partitions if none is set."""
        return text.queue(options.partition)

    def checks(
        self, options: SlurmOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check Slurm, a test submission, the nodes, and the software of one free node."""
        return checks.checks(options, modules, programs)

    def preview(self, spec: JobSpec, options: SlurmOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Slurm names the nodes when the job starts."""
        placement = before_contact(spec, options.gpus, options.gpus_per_node or "not set")
        gpus = options.gpus if spec.use_gpu is not False else 0
        ranks = (dataclasses.replace(slot, gpu=slot.local_rank % gpus if gpus else None) for slot in placement.ranks)
        return dataclasses.replace(placement, ranks=tuple(ranks))

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SlurmOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Submit the job, wait until Slurm starts it, and connect to its agents."""
        job = _attached(context.handle, context) if context.handle is not None else None
        self._slurm = job or self._submit(spec, options, context)
        self._slurm.poll_soon()
        self._await(self._slurm.hosts, "queue", context)
        for node, host in enumerate(self._slurm.hosts()):
            self._connections.append(self._slurm.connect(node, host, takeover=job is not None))
            self._connections[-1].start()
        self._await(self._all_have_greeted, "stage", context)
        return spec, []

    def _submit(self, spec: JobSpec, options: SlurmOptions, context: Context) -> SlurmJob:
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        if options.container_image and (reason := script.lacks_containers()):
            raise LaunchFailed(
                f"container_image is {options.container_image}, but {reason}.",
                code="slurm-container-unsupported",
                hint=script.CONTAINER_REMEDY,
            )
        secrets = {name: context.variables[name] for name in spec.secret_variables if name in context.variables}
        if directory.copied:
            context.report("stage", "copying the job's files")
        directory.write(context.folder, spec, options)
        context.report("queue", "submitting to Slurm")
        try:
            job = array.claim_task(directory, spec, options, secrets, context)
            if not job:
                comment, output = spec.id if spec.group else "", directory.output.name
                arguments = script.arguments(spec, options, secrets, directory.run, output, comment)
                job = commands.submit([*arguments, str(directory.batch)], secrets)
                context.record_handle(directory.handle(job))
        except commands.SlurmFailed as error:
            directory.remove()
            code, remedy = text.refusal(error, options)
            raise LaunchFailed(error.message, code=code, hint=remedy) from error
        except OSError as error:
            raise script.unusable(error, directory.job) from error
        return _started(directory, job)

    def _all_have_greeted(self) -> bool:
        return all(connection.greeted.is_set() for connection in self._connections)

    def _await(self, condition: Callable[[], object], phase: str, context: Context) -> None:
        """Wait for ``condition`` and report why the job has not started. Raises LaunchFailed if the job has ended."""
        assert self._slurm is not None, "a job was submitted"
        slurm = self._slurm
        while not condition():
            for notice in slurm.notices():
                context.note(notice)
            if self._connections:
                slurm.on_output(slurm.output())
            if slurm.ended or any(connection.lost for connection in self._connections):
                raise slurm.refusal()
            detail = f"Slurm job {slurm.job}{_why(slurm.state)}"
            context.report(phase, detail)
            if phase == "queue" and slurm.position is not None:
                context.note_place(dataclasses.replace(slurm.position, why=detail))
            time.sleep(_POLL_SECONDS)

    def _job(self, spec: JobSpec, options: SlurmOptions, context: Context) -> StagedJob:
        """Return the job's files as the nodes see them."""
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        spec = dataclasses.replace(spec, working_directory="")
        # Agents use ``directory`` for data on their local disks.
        return StagedJob(spec, JobFolder(directory.job), dataclasses.replace(options, directory=options.data_directory))

    def _nodes_of(self, job: StagedJob, placement: Placement, context: Context) -> SlurmNodes:
        """Return the nodes; secret values are left out, because the agents inherit them from Slurm."""
        assert self._slurm is not None, "the nodes are connected"
        slurm, self._slurm = self._slurm, None
        return SlurmNodes(job, placement, _without_secrets(job.spec, context), self._nodes, slurm)

    def _release_nodes(self) -> None:
        if self._slurm is not None:
            state = self._slurm.state
            if state is not None and not state.pending:  # canceling first would change the reason of its end
                self._interrupted = self._slurm.interruption()
            if not self._connections or not self._all_have_greeted():
                self._slurm.cancel()
            super()._release_nodes()
            self._slurm.close()
            self._slurm = None

    def interrupted(self) -> str:
        """Return why Slurm ended the job before its ranks ran."""
        return self._interrupted

    # continue after the supervisor has died ----------------------------------------------------------

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Connect to the agents of a started job through their files. Raises LaunchFailed if its folder was deleted."""
        slurm = _attached(handle, context)
        if slurm is None:
            raise LaunchFailed(
                "The task of the job in the Slurm array belongs to another trial.", code="slurm-task-taken"
            )
        slurm.has_run = True
        hosts = [str(node["host"]) for node in handle["nodes"]]
        connections = [slurm.connect(node, host, takeover=True) for node, host in enumerate(hosts)]
        nodes = [
            AgentNode(connection, str(slurm.directory.job), "", str(node["run"]), shared=True)
            for connection, node in zip(connections, handle["nodes"], strict=True)
        ]
        limits.allow_files(4 * spec.process_count)
        slots = (RankSlot(rank, node, hosts[node], local_rank) for rank, node, local_rank in handle["ranks"])
        placement = Placement(tuple(slots), address="", ports=(), interface="")
        job = self._job(spec, SlurmOptions(**spec.cluster_options), context)
        position = slurm.directory.output.stat().st_size
        slurm_nodes = SlurmNodes(job, placement, _without_secrets(spec, context), nodes, slurm, position)
        slurm.on_output(slurm.output())
        run = agent_run.resume(placement, context, slurm_nodes, handle, read)
        for connection in connections:
            connection.start()
        return run

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Cancel the job and wait until Slurm has ended it; without a handle, look it up by name."""
        if "link" in handle and not script.points_to(Path(handle["link"]), Path(handle["folder"], handle["run"])):
            return []
        jobs = [str(handle["slurm_job"])] if handle.get("slurm_job") else commands.jobs_named(job_id)
        return [killed for job in jobs for killed in _cancel(job)]

    def close_group(self, group: Group, options: SlurmOptions) -> None:
        """Remove the unclaimed tasks of a sweep's job array from the queue."""
        array.close(group, options)


def _started(directory: script.JobDirectory, number: str) -> SlurmJob:
    job = SlurmJob(directory, number)
    job.start()
    return job


def _attached(handle: Mapping[str, Any], context: Context) -> SlurmJob | None:
    """Return the job that an earlier supervisor submitted, None if another trial has claimed its array task.

    Raises LaunchFailed if its folder was deleted.
    """
    directory = str(Path(str(handle["folder"])).parent) if handle.get("copied") else ""
    files = script.JobDirectory(context.folder, directory, context.restart)
    if not files.run.is_dir():
        raise LaunchFailed(f"The folder of the job for Slurm no longer exists: {files.run}.", code="slurm-folder-gone")
    if "link" in handle:
        with contextlib.suppress(OSError):  # the array's folder was deleted
            files.claim_task(Path(handle["link"]))
        if files.link is None:
            return None
    return _started(files, str(handle["slurm_job"]))


def _why(state: commands.JobState | None) -> str:
    if state is None:
        return " was submitted"
    return f": {text.waiting(state)}" if state.pending else f": waiting for its agents on {state.nodes or 'its nodes'}"


def _without_secrets(spec: JobSpec, context: Context) -> Context:
    variables = {name: value for name, value in context.variables.items() if name not in spec.secret_variables}
    return dataclasses.replace(context, variables=variables)


def _cancel(job: str) -> list[str]:
    """Kill a job and wait until it ends; return its description, [] if it had already ended. Raises SlurmSilent."""
    if commands.has_ended(job):
        return []
    commands.kill(job)
    until = time.monotonic() + _SWEEP_SECONDS
    while not commands.has_ended(job) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"Slurm job {job}"]

"""Slurm as a cluster: jobs wait in its queue, run on nodes that it chooses, and go on without their supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.clusters.agents import placing
from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.staging import AgentNode, Job
from distdl_jupyter.clusters.base import Check, Context, NodeInfo, Run
from distdl_jupyter.clusters.slurm import accounting, array, commands, script, sinfo, squeue, words
from distdl_jupyter.clusters.slurm.checkup import checked
from distdl_jupyter.clusters.slurm.nodes import SlurmJob, SlurmNodes
from distdl_jupyter.clusters.slurm.options import SlurmOptions
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.store import JobFolder

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Unreachable
    from distdl_jupyter.core.queue import QueuedJob
    from distdl_jupyter.core.spec import Group, JobSpec

#: Seconds that the end of a swept job is waited for.
_TIMEOUT = 15.0
#: Seconds between two looks whether the nodes are there.
_LOOK = 0.1


class _Settings(NamedTuple):
    """The options that all clusters with agents have, as Slurm's jobs have them."""

    directory: str
    network: str
    shared: bool | None = None
    #: Slurm has decided already how many processes fit.
    oversubscribe: bool = True


class SlurmCluster(AgentCluster):
    """Runs ranks on the nodes of a Slurm job, each of which has an agent."""

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
        """Slurm's commands must be here."""
        return commands.absent()

    def process_count_per_node(self, options: SlurmOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs that a job gets on each node, 1 without any."""
        return max(1, options.gpus) if use_gpu is not False else 1

    def detail(self, options: SlurmOptions) -> str:
        """Return partition and GPUs in words."""
        parts = [f"partition {options.partition}" if options.partition else "default partition"]
        if options.gpus_per_node:
            parts.append(f"{options.gpus_per_node} GPUs per node")
        return ", ".join(parts)

    def requeues(self, options: SlurmOptions) -> int:
        """Return the option ``requeue``."""
        return options.requeue

    def nodes(self, options: SlurmOptions) -> list[NodeInfo]:
        """Return the partition's nodes. Raises DistDLError when Slurm does not answer."""
        ranks = sinfo.ranks()
        found = [words.node(node) for node in sinfo.nodes(options.partition)]
        return [dataclasses.replace(node, ranks=ranks.get(node.name, 0)) for node in found]

    def everybody(self, options: SlurmOptions) -> list[QueuedJob]:
        """Return the jobs of the cluster's partition, of all partitions where it names none."""
        return squeue.jobs(options.partition)

    def checks(
        self, options: SlurmOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Look at Slurm and its nodes; what is installed on them is seen only when a job runs."""
        return checked(options, modules, programs)

    def preview(self, spec: JobSpec, options: SlurmOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Slurm names the nodes when the job begins."""
        found = placing.before_contact(spec, options.gpus, options.gpus_per_node or "not set")
        gpus = options.gpus if spec.use_gpu is not False else 0
        ranks = (dataclasses.replace(place, gpu=place.local_rank % gpus if gpus else None) for place in found.ranks)
        return dataclasses.replace(found, ranks=tuple(ranks))

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SlurmOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Submit the job, wait for its turn, and reach its agents."""
        found = _found(context.handle, context) if context.handle is not None else None
        self._slurm = found or self._submitted(spec, options, context)
        self._slurm.watch.hurry()
        self._await(self._slurm.hosts, "queue", context)
        for at, host in enumerate(self._slurm.hosts()):
            self._connections.append(self._slurm.connect(at, host, takeover=found is not None))
            self._connections[-1].start()
        self._await(self._all_have_greeted, "stage", context)
        return spec, []

    def _submitted(self, spec: JobSpec, options: SlurmOptions, context: Context) -> SlurmJob:
        site = script.Site(context.folder, options.directory, context.restart)
        _check_path(site)
        _check_before(options)
        secrets = script.secrets_of(spec, context.own)
        if site.copied:
            context.report("stage", "copying the job's files")
        site.write(context.folder, spec, options)
        context.report("queue", "submitting to Slurm")
        try:
            job = array.take(site, spec, options, secrets, context)
            if not job:
                comment = spec.id if spec.group else ""
                arguments = script.arguments(spec, options, secrets, site.run, site.output.name, comment)
                job = commands.submit([*arguments, str(site.batch)], secrets)
                context.record_handle(site.handle(job))
        except commands.SlurmFailed as error:
            site.remove()
            raise LaunchFailed(error.message, code=error.code, hint=_remedy(error.message)) from error
        except OSError as error:
            raise script.unusable(error, site.job) from error
        return SlurmJob(site, job)

    def _all_have_greeted(self) -> bool:
        return all(one.greeted for one in self._connections)

    def _await(self, condition: Callable[[], object], phase: str, context: Context) -> None:
        """Wait for the nodes, and tell why Slurm has not begun the job. Raises LaunchFailed when it has ended."""
        assert self._slurm is not None, "a job was submitted"
        watch = self._slurm.watch
        while not condition():
            for notice in watch.notices():
                context.note(notice)
            if self._connections:
                self._slurm.listen(self._slurm.printed())
            if watch.ended or any(one.lost for one in self._connections):
                raise self._slurm.refusal()
            detail = f"Slurm job {self._slurm.number}{_why(watch.state)}"
            context.report(phase, detail)
            if phase == "queue" and watch.place is not None:
                context.note_place(dataclasses.replace(watch.place, why=detail))
            time.sleep(_LOOK)

    def _job(self, spec: JobSpec, options: SlurmOptions, context: Context) -> Job:
        """Return the job's files where the nodes see them."""
        site = script.Site(context.folder, options.directory, context.restart)
        there = dataclasses.replace(spec, working_directory="")
        return Job(there, JobFolder(site.job), _Settings(options.data_directory, options.network))

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> SlurmNodes:
        """Return the nodes; secret values are in the agents' own environment."""
        assert self._slurm is not None, "the nodes were reached"
        slurm, self._slurm = self._slurm, None
        return SlurmNodes(job, placement, _without_secrets(job.spec, context), self._nodes, slurm)

    def _let_go(self) -> None:
        """Give the nodes back to Slurm."""
        if self._slurm is not None:
            state = self._slurm.watch.state
            if state is not None and not state.pending:  # before the cancel, which would be the job's end then
                self._interrupted = self._slurm.interruption()
            if not self._connections or not self._all_have_greeted():
                self._slurm.cancel()
            super()._let_go()
            self._slurm.close()
            self._slurm = None

    def interrupted(self) -> str:
        """Return what Slurm has said of the job's end before its ranks ran."""
        return self._interrupted

    # after a supervisor's death ---------------------------------------------------------------------

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Reach the agents of a started job by their files. Raises LaunchFailed when its folder is gone."""
        slurm = _found(handle, context)
        if slurm is None:
            raise LaunchFailed(
                "The task of the job in the Slurm array belongs to another trial.", code="slurm-task-taken"
            )
        slurm.watch.has_run = True
        hosts = [str(node["host"]) for node in handle["nodes"]]
        reached = [slurm.connect(at, host, takeover=True) for at, host in enumerate(hosts)]
        found = [
            AgentNode(one, str(slurm.site.job), "", str(node["run"]), shared=True)
            for one, node in zip(reached, handle["nodes"], strict=True)
        ]
        limits.allow_files(4 * spec.process_count)
        places = (RankSlot(rank, node, hosts[node], local_rank) for rank, node, local_rank in handle["ranks"])
        placement = Placement(tuple(places), address="", ports=(), interface="")
        job = self._job(spec, SlurmOptions(**spec.cluster_options), context)
        position = slurm.site.output.stat().st_size
        machines = SlurmNodes(job, placement, _without_secrets(spec, context), found, slurm, position)
        slurm.listen(slurm.printed())
        run = agent_run.resume(placement, context, machines, handle, read)
        for one in reached:
            one.start()
        return run

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Cancel the job and wait until Slurm has ended it; without a handle it is found by its name."""
        if "link" in handle and not script.leads(Path(handle["link"]), Path(handle["folder"], handle["run"])):
            return []
        jobs = [str(handle["slurm_job"])] if handle.get("slurm_job") else commands.jobs_named(job_id)
        return [found for job in jobs for found in _cancel(job)]

    def close_group(self, group: Group, options: SlurmOptions) -> None:
        """Take the rest of a sweep's job array out of the queue."""
        array.close(group, options)


def _found(handle: Mapping[str, Any], context: Context) -> SlurmJob | None:
    """Return the job that an earlier supervisor has submitted, None where another one has taken its task of an array.

    Raises LaunchFailed when its folder is gone.
    """
    directory = str(Path(str(handle["folder"])).parent) if handle.get("copied") else ""
    site = script.Site(context.folder, directory, context.restart)
    if not site.run.is_dir():
        raise LaunchFailed(f"The folder of the job for Slurm no longer exists: {site.run}.", code="slurm-folder-gone")
    if "link" in handle:
        with contextlib.suppress(OSError):  # somebody has deleted the array's folder
            site.take(Path(handle["link"]))
        if site.link is None:
            return None
    return SlurmJob(site, str(handle["slurm_job"]))


def _why(state: commands.JobState | None) -> str:
    if state is None:
        return " was submitted"
    return f": {words.waiting(state)}" if state.pending else f": waiting for its agents on {state.nodes or 'its nodes'}"


def _without_secrets(spec: JobSpec, context: Context) -> Context:
    own = {name: value for name, value in context.own.items() if name not in spec.secret_variables}
    return dataclasses.replace(context, own=own)


def _cancel(job: str) -> list[str]:
    """End one job; return it when it had not ended."""
    if commands.has_ended(job):
        return []
    for part in ("0", "batch"):  # its agents, and its batch script
        _unless_ended(partial(commands.kill, job, part))
    _unless_ended(partial(commands.cancel, job))
    until = time.monotonic() + _TIMEOUT
    while not commands.has_ended(job) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"Slurm job {commands.number(job)}"]


def _unless_ended(send: Callable[[], None]) -> None:
    try:
        send()
    except commands.SlurmSilent:
        raise
    except commands.SlurmFailed:
        return  # it is ending by itself


def _check_path(site: script.Site) -> None:
    """Refuse a folder whose name Slurm's options cannot carry."""
    if re.search(r"[\n\"'\\]", str(site.run)):
        raise InvalidSpec(
            f"Slurm cannot use the folder {site.run} because its name contains a quote, a backslash or a line break.",
            code="slurm-folder-name",
            field="directory",
            hint="Set the option directory to another folder.",
        )


def _check_before(options: SlurmOptions) -> None:
    """Refuse what sbatch would refuse with fewer words, or would accept and never run. Raises LaunchFailed."""
    if options.container_image and (lacking := script.lacks_containers()):
        raise LaunchFailed(
            f"container_image is {options.container_image}, but {lacking}.",
            code="slurm-container-unsupported",
            hint=script.CONTAINER_REMEDY,
        )
    if options.account or options.qos:
        with contextlib.suppress(commands.SlurmFailed):  # without its accounting Slurm decides itself
            found = accounting.allowed(options.partition)
            option, says, remedy = found.refusal(options) if found is not None else ("", "", "")
            if says:
                raise LaunchFailed(f"{says[0].upper()}{says[1:]}.", code=f"slurm-{option}-not-allowed", hint=remedy)


_REMEDIES = (
    ("invalid partition", "Set the option partition to one that is listed by: sinfo"),
    ("invalid account", "Set the option account to one that is listed by: sacctmgr show associations user=$USER"),
    ("invalid qos", "Remove or correct the option qos."),
    ("time limit", "Lower time_limit."),
    ("node count", "Lower node_count."),
    (
        "node configuration is not available",
        "Request fewer processes, cores or GPUs per node, or set another partition.",
    ),
    ("invalid generic resource", "Remove gpus_per_node, or set it to a value that is listed by: sinfo -o %G"),
    ("invalid feature", "Set constraint to features that are listed by: sinfo -o %f"),
    ("more processors", "Request fewer processes or cores per node."),
    ("unrecognized option", "Remove it from the option extra."),
    ("invalid option", "Remove it from the option extra."),
    ("contact slurm controller", "Try again when Slurm's controller responds to: scontrol ping"),
)


def _remedy(message: str) -> str:
    return next((remedy for words_, remedy in _REMEDIES if words_ in message.lower()), "")

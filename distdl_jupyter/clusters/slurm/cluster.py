"""Slurm as a cluster: jobs wait in its queue, run on nodes that it chooses, and go on without their supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Check, Cluster, Context, NodeInfo, Run
from distdl_jupyter.clusters.slurm import commands, data, script, sinfo, words
from distdl_jupyter.clusters.slurm.checkup import checked
from distdl_jupyter.clusters.slurm.options import SlurmOptions
from distdl_jupyter.clusters.slurm.run import SlurmRun, killing
from distdl_jupyter.clusters.slurm.told import alive_in, reader_of
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.plan import Placement, Plan, late_placement, late_port, late_seat, seated

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec

#: Seconds that the end of a swept job is waited for.
_PATIENCE = 15.0


class SlurmCluster(Cluster):
    """Runs ranks as tasks of a Slurm job."""

    name = "slurm"
    title = "Slurm"
    Options = SlurmOptions
    complete = False
    far = True
    queues = True
    can_attach = True
    stages = True

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

    def nodes(self, options: SlurmOptions) -> list[NodeInfo]:
        """Return the partition's nodes. Raises DistDLError when Slurm does not answer."""
        ranks = sinfo.ranks()
        found = [words.node(node) for node in sinfo.nodes(options.partition)]
        return [dataclasses.replace(node, ranks=ranks.get(node.name, 0)) for node in found]

    def checks(
        self, options: SlurmOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Look at Slurm and its nodes; what is installed on them is seen only when a job runs."""
        return checked(options, modules, programs)

    def preview(self, spec: JobSpec, options: SlurmOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Slurm names the nodes when the job begins."""
        gpus = options.gpus if spec.use_gpu is not False else 0
        if spec.use_gpu and gpus < spec.process_count_per_node:
            raise InvalidSpec(
                f"use_gpu asks for {spec.process_count_per_node} GPUs on each node, but the cluster's gpus_per_node is "
                f"{options.gpus_per_node or 'not set'}.",
                field="use_gpu",
                hint=f"Set the cluster's option gpus_per_node to {spec.process_count_per_node}.",
            )
        return late_placement(spec.node_count, spec.process_count_per_node, gpus)

    def place(self, spec: JobSpec, ports: int, options: SlurmOptions, context: Context) -> Placement:
        """Return the preview with words in place of ports: the first node chooses them."""
        site = script.Site(context.folder, options.directory, context.restart)
        _check_path(site)
        return dataclasses.replace(
            seated(self.preview(spec, options), context.rank_ports, late_seat),
            ports=tuple(late_port(number) for number in range(ports)),
            remote_shell=(str(site.run / "remote-shell"),),
        )

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Write the job's files and submit it. Raises LaunchFailed with what sbatch says."""
        options = SlurmOptions(**spec.cluster_options)
        site = script.Site(context.folder, options.directory, context.restart)
        python = script.python_of(spec, options)
        secrets = script.secrets_of(spec, context.own)
        context.tell("stage", "copying the job's files" if site.copied else "nothing to copy")
        more = data.orders(context.staging, spec.node_count, options.data_directory)
        site.write(context.folder, spec, options, script.plan_data(spec, placement, plan, context, site, python), more)
        context.tell("start", "submitting to Slurm")
        try:
            job = commands.submit(
                script.arguments(site, spec, options, secrets),
                script.batch(site, spec, options, launcher=plan.launcher is not None),
                secrets,
            )
        except commands.SlurmFailed as error:
            site.remove()
            raise LaunchFailed(error.message, hint=_remedy(error.message)) from error
        return SlurmRun(spec, site, job, context, plan.launcher.first_exit if plan.launcher else None)

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Follow a job again by its number and folder. Raises LaunchFailed when its folder is gone."""
        site = _site_of(handle, context)
        if not site.run.is_dir():
            raise LaunchFailed(f"The job's folder for Slurm, {site.run}, is gone.")
        return SlurmRun(spec, site, str(handle["slurm_job"]), context, reader_of(handle.get("first_exit")), read)

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Cancel the job and wait until Slurm has ended it; without a handle it is found by its name."""
        jobs = [str(handle["slurm_job"])] if handle.get("slurm_job") else commands.jobs_named(job_id)
        found: list[object] = []
        for job in jobs:
            found += _cancel(job, Path(str(handle.get("folder", ""))) / str(handle.get("run") or "slurm"))
        return found


def _cancel(job: str, run: Path) -> list[object]:
    """End one job; return its processes that were alive, or the job itself while it has none."""
    try:
        if commands.state(job).ended:
            return []
    except commands.UnknownJob:
        return []
    alive: list[object] = [*alive_in(run)]
    for kill in killing(job):
        _unless_ended(kill)
    _unless_ended(partial(commands.cancel, job))
    until = time.monotonic() + _PATIENCE
    with contextlib.suppress(commands.UnknownJob):
        while not commands.state(job).ended and time.monotonic() < until:
            time.sleep(0.2)
    return alive or [f"Slurm job {commands.number(job)}"]


def _unless_ended(send: Callable[[], None]) -> None:
    try:
        send()
    except commands.SlurmSilent:
        raise
    except commands.SlurmFailed:
        return  # it is ending by itself


def _site_of(handle: Mapping[str, Any], context: Context) -> script.Site:
    directory = str(Path(str(handle["folder"])).parent) if handle.get("copied") else ""
    return script.Site(context.folder, directory, context.restart)


def _check_path(site: script.Site) -> None:
    """Refuse a folder whose name Slurm's options cannot carry."""
    if re.search(r"[\n\"'\\]", str(site.run)):
        raise InvalidSpec(f"Slurm cannot use the folder {site.run}: its name holds a quote, a backslash or a line end.",
                          field="directory", hint="Set the option directory to another one.")  # fmt: skip


_REMEDIES = (
    ("invalid partition", "Set the option partition to one of those that 'sinfo' lists."),
    ("invalid account", "Set the option account to one of yours ('sacctmgr show associations user=$USER')."),
    ("invalid qos", "Set the option qos, or leave it out."),
    ("time limit", "Set a shorter time_limit."),
    ("node count", "Set a smaller node_count."),
    ("node configuration is not available", "Ask for fewer processes, cores or GPUs per node, or another partition."),
    ("invalid generic resource", "Set gpus_per_node to what 'sinfo -o %G' lists, or leave it out."),
    ("invalid feature", "Set constraint to features that 'sinfo -o %f' lists."),
    ("more processors", "Ask for fewer processes or cores on each node."),
    ("unrecognized option", "Take it out of the option extra."),
    ("invalid option", "Take it out of the option extra."),
    ("contact slurm controller", "Try again when Slurm's controller is up ('scontrol ping')."),
)


def _remedy(message: str) -> str:
    return next((remedy for words_, remedy in _REMEDIES if words_ in message.lower()), "")

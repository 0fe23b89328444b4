"""Azure Machine Learning as a cluster: jobs wait in its queue, run in an image on its nodes, and need nobody here."""

from __future__ import annotations

import dataclasses
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.azureml import checkup, code, job, refusals, run, states
from distdl_jupyter.clusters.azureml.client import Address, Workspace, submitting
from distdl_jupyter.clusters.azureml.compute import ComputeClusters, known_size
from distdl_jupyter.clusters.azureml.node import node_plan
from distdl_jupyter.clusters.azureml.options import AzureMLOptions
from distdl_jupyter.clusters.base import Check, Context, Notice, Run
from distdl_jupyter.core.errors import AzureRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, size
from distdl_jupyter.core.plan import Placement, Plan, RankPorts, RankSlot, with_ports
from distdl_jupyter.core.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.core.spec import JobSpec

#: Seconds that the end of a swept job is waited for.
_TIMEOUT = 60.0


class AzureMLCluster(ComputeClusters):
    """Runs ranks as the processes of a job on Azure ML."""

    name = "azureml"
    title = "Azure ML"
    Options = AzureMLOptions
    complete = False
    far = True
    queues = True
    mounts = True
    installs = True
    bills = True
    can_attach = True
    can_restart = False

    def unavailable(self, options: AzureMLOptions) -> str:
        """A workspace and nodes must be named, and azure-ai-ml must be here."""
        if options.missing:
            return f"The Azure ML cluster has no {options.missing}. Set the option {options.missing}."
        return "" if _sdk_is_here() else "azure-ai-ml is not installed. Run: pip install 'distdl-jupyter[azure]'"

    def validate(self, options: AzureMLOptions) -> None:
        """Raise InvalidSpec for a cluster without workspace or nodes."""
        if options.missing:
            raise InvalidSpec(
                f"The Azure ML cluster has no {options.missing}.",
                code="azureml-setting-missing",
                field=options.missing,
                hint=f"Set the cluster option {options.missing}.",
            )

    def process_count_per_node(self, options: AzureMLOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs of the VM size, 1 where it is not known."""
        return max(1, _gpus(options)) if use_gpu is not False else 1

    def detail(self, options: AzureMLOptions) -> str:
        """Return compute and size in words."""
        where = f"compute {options.compute}" if options.compute else "serverless"
        return ", ".join(part for part in (where, options.vm_size) if part)

    def checks(
        self, options: AzureMLOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Look at sign-in, workspace, compute and image; a node is looked at only when a job runs."""
        return checkup.checked(options, modules, programs)

    def preview(self, spec: JobSpec, options: AzureMLOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Azure ML names the nodes when the job begins."""
        job.check(spec)
        gpus, per_node = _gpus(options) if spec.use_gpu is not False else 0, spec.process_count_per_node
        if spec.use_gpu and options.vm_size and gpus < per_node:
            raise InvalidSpec(
                f"use_gpu needs {per_node} GPUs on each node, but {options.vm_size} has {gpus}.",
                code="azureml-too-few-gpus",
                field="use_gpu",
                hint="Set vm_size to a larger size, or use fewer processes per node.",
            )
        places = (
            RankSlot(rank, rank // per_node, f"node-{rank // per_node}", rank % per_node,
                      rank % per_node % gpus if gpus else None)
            for rank in range(spec.node_count * per_node)
        )  # fmt: skip
        return Placement(tuple(places), node_plan.ADDRESS, (), node_plan.INTERFACE, node_plan.CORES, node_plan.NETWORK)

    def place(self, spec: JobSpec, ports: int, options: AzureMLOptions, context: Context) -> Placement:
        """Return the preview with words in place of ports: the first node chooses them."""
        if absent := checkup.lacking(options, context.modules):
            raise LaunchFailed(
                f"{listing(absent)} {'is' if len(absent) == 1 else 'are'} not in the generated image.",
                code="azureml-image-without",
                hint="Set the cluster option environment to an image of the workspace that contains it.",
            )
        context.report("stage", "connecting to the Azure ML workspace")
        with refusals.translated(options):
            Workspace(Address.of(options)).info()
        placement = with_ports(self.preview(spec, options), context.rank_ports, _rank_ports)
        return dataclasses.replace(placement, ports=tuple(node_plan.port(number) for number in range(ports)))

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Upload the job's code and submit it. Raises LaunchFailed with what Azure says."""
        options = AzureMLOptions(**spec.cluster_options)
        workspace = Workspace(Address.of(options))
        folder = code.write(spec, placement, plan, context)
        context.report("start", f"submitting to Azure ML, {size(code.size(folder))} of code")
        try:
            studio = _submitted(spec, options, plan, workspace, str(folder))
        finally:
            code.remove(context.folder)
        notices = [Notice("info", f"Azure ML runs the job as {job.run_name(spec.id)}: {studio}", "azureml")]
        if any(source.mode == "mount" for source in spec.data):
            notices.append(Notice("warning", "Mounted data is read over the network during training. Download it "
                                  "if it fits on the nodes' disks and is read more than once.", "mounted"))  # fmt: skip
        return run.AzureMLRun(spec, workspace, job.run_name(spec.id), context, studio=studio, notices=notices)

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Follow a job again by its name; nothing is asked here, so that an expired sign-in loses no job."""
        workspace = Workspace(Address(**handle["workspace"]))
        return run.AzureMLRun(spec, workspace, str(handle["run"]), context, studio=str(handle.get("studio") or ""),
                              read=read)  # fmt: skip

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Cancel the job and wait until Azure has ended it; its name follows from the job's id."""
        if handle:
            address = Address(**handle["workspace"])
        else:
            address = Address.of(AzureMLOptions(**JobStore().find(job_id).spec().cluster_options))
        workspace, name = Workspace(address), job.run_name(job_id)
        if not run.cancel(workspace, name):
            return []
        until = time.monotonic() + _TIMEOUT
        while workspace.job(name)["properties"].get("status") not in states.ENDED and time.monotonic() < until:
            time.sleep(1.0)
        return [f"Azure ML job {name}"]


def _rank_ports(place: RankSlot, count: int) -> RankPorts:
    """Return the words for a rank's own address and ports, which its node knows when the job begins."""
    return node_plan.rank_address(place.rank), tuple(node_plan.rank_port(place.rank, one) for one in range(count))


def _submitted(spec: JobSpec, options: AzureMLOptions, plan: Plan, workspace: Workspace, folder: str) -> str:
    """Submit the job and return its address in the studio. Raises LaunchFailed."""
    try:
        with submitting(workspace.address) as client:
            image = job.environment(options, workspace, spec, Path(f"{folder}-image"))
            wanted = job.command(spec, options, Path(folder), image, plan.distribution)
            return str(client.jobs.create_or_update(wanted).studio_url or "")
    except DistDLError as error:
        raise job.refused(error) if isinstance(error, AzureRefused) else error from None
    except Exception as error:  # noqa: BLE001  the SDK raises many kinds, which have no base class in common
        if (studio := _arrived(workspace, job.run_name(spec.id))) is not None:
            return studio
        raise job.refused(error) from None


def _arrived(workspace: Workspace, name: str) -> str | None:
    """Return the address in the studio of a job that was taken although its answer got lost, None when it was not."""
    try:
        services = workspace.job(name)["properties"].get("services") or {}
    except DistDLError:
        return None
    return str((services.get("Studio") or {}).get("endpoint") or "")


def _sdk_is_here() -> bool:
    try:
        return find_spec("azure.ai.ml") is not None
    except ModuleNotFoundError:
        return False


def _gpus(options: AzureMLOptions) -> int:
    """Return the GPUs of the options' VM size as the catalogue knows it, 0 where it does not."""
    found = known_size(options.vm_size)
    return found.whole_gpus if found is not None else 0

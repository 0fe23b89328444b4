"""Azure Machine Learning as a cluster: jobs wait in its queue and run in an image on its nodes."""

from __future__ import annotations

import dataclasses
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import identity
from distdl_jupyter.clusters.azureml import bootstrap, compute, errors, job, run
from distdl_jupyter.clusters.azureml.client import Address, Workspace, submitting
from distdl_jupyter.clusters.azureml.options import GENERATED, AzureMLOptions
from distdl_jupyter.clusters.base import Check, Context, Notice, Run
from distdl_jupyter.core.errors import AzureRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, size
from distdl_jupyter.core.plan import Placement, Plan, RankPorts, RankSlot, with_ports
from distdl_jupyter.core.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.core.spec import JobSpec

#: Seconds that ``sweep`` waits for the end of a job.
_TIMEOUT = 60.0
#: What the generated image contains beside Python's own modules, and its programs.
_MODULES = frozenset({"torch", "horovod", "numpy", "pandas", "sklearn", "cloudpickle", "psutil", "torchvision"})
_PROGRAMS = frozenset({"mpirun", "sh", "bash", "git", "g++"})


class AzureMLCluster(compute.ComputeClusters):
    """Runs ranks as the processes of a job on Azure ML."""

    name = "azureml"
    Options = AzureMLOptions
    queues = True
    mounts = True
    installs = True
    can_attach = True
    can_restart = False

    def unavailable(self, options: AzureMLOptions) -> str:
        """A workspace and nodes must be named, and azure-ai-ml must be installed."""
        if options.missing:
            return f"The Azure ML cluster has no {options.missing}. Set the option {options.missing}."
        try:
            is_installed = find_spec("azure.ai.ml") is not None
        except ModuleNotFoundError:
            is_installed = False
        return "" if is_installed else "azure-ai-ml is not installed. Run: pip install 'distdl-jupyter[azure]'"

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
        """Check sign-in, workspace, compute and image.

        Nodes are not checked: none may be up, and starting one costs money and minutes. So the packages are known only
        of the image that this package generates.
        """
        account = identity.status().account
        if account is None:
            return [Check("", "Azure", "error", "not signed in", identity.HOW, code="azureml-signed-out")]
        rows = [Check("", "Azure", "ok", f"signed in as {account.name}")]
        what = "Workspace"
        try:
            Workspace(Address.of(options)).info()
            rows.append(Check("", what, "ok", options.workspace))
            what = "Compute"
            rows += _check_compute(options)
        except DistDLError as error:
            hint = error.hint or "Check the options subscription_id, resource_group and workspace."
            return [*rows, Check("", what, "error", error.message, hint, code=error.code)]
        return [*rows, *_check_image(options, modules, programs)]

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
        slots = []
        for rank in range(spec.node_count * per_node):
            node, local_rank = divmod(rank, per_node)
            slots.append(RankSlot(rank, node, f"node-{node}", local_rank, local_rank % gpus if gpus else None))
        return Placement(tuple(slots), job.BY_AZURE, (), job.BY_AZURE, bootstrap.CORES, job.BY_AZURE)

    def place(self, spec: JobSpec, ports: int, options: AzureMLOptions, context: Context) -> Placement:
        """Return the preview with placeholders for addresses and ports, which Azure's distribution sets."""
        if missing := _missing_modules(options, context.modules):
            raise LaunchFailed(
                f"{listing(missing)} {'is' if len(missing) == 1 else 'are'} not in the generated image.",
                code="azureml-image-without",
                hint="Set the cluster option environment to an image of the workspace that contains it.",
            )
        context.report("stage", "connecting to the Azure ML workspace")
        with errors.translated(options):
            Workspace(Address.of(options)).info()
        placement = with_ports(self.preview(spec, options), context.rank_ports, _rank_ports)
        return dataclasses.replace(placement, ports=tuple(f"{job.BY_AZURE}{number}" for number in range(ports)))

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Upload the job's code and submit it. Raises LaunchFailed with Azure's message."""
        if plan.services and plan.distribution != "mpi":
            raise LaunchFailed(
                f"{plan.services[0].name} cannot be started on Azure ML.",
                code="azureml-service",
                hint="Use another backend, or a cluster of type ssh or slurm.",
            )
        options = AzureMLOptions(**spec.cluster_options)
        workspace = Workspace(Address.of(options))
        code = job.write_code(spec, placement, plan, context)
        uploaded = size(sum(path.stat().st_size for path in code.rglob("*") if path.is_file()))
        context.report("start", f"submitting to Azure ML, {uploaded} of code")
        try:
            studio = _submit(spec, options, plan, workspace, code)
        finally:
            job.remove_code(context.folder)
        name = job.run_name(spec.id)
        notices = [Notice("info", f"Azure ML runs the job as {name}: {studio}", "azureml")]
        if any(source.mode == "mount" for source in spec.data):
            text = (
                "Mounted data is read over the network during training. Download it if it fits on the nodes' disks "
                "and is read more than once."
            )
            notices.append(Notice("warning", text, "mounted"))
        return run.AzureMLRun(spec, workspace, name, context, studio=studio, notices=notices)

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Follow a job again by its name. No request is sent here, so an expired sign-in loses no job."""
        workspace, studio = Workspace(Address(**handle["workspace"])), str(handle.get("studio") or "")
        return run.AzureMLRun(spec, workspace, str(handle["run"]), context, studio=studio, read=read)

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
        while workspace.job(name)["properties"].get("status") not in run.ENDED and time.monotonic() < until:
            time.sleep(1.0)
        return [f"Azure ML job {name}"]


def _rank_ports(slot: RankSlot, count: int) -> RankPorts:
    return job.BY_AZURE, tuple(f"{job.BY_AZURE}{slot.rank}-{number}" for number in range(count))


def _submit(spec: JobSpec, options: AzureMLOptions, plan: Plan, workspace: Workspace, code: Path) -> str:
    """Submit the job and return its address in the studio. Raises LaunchFailed."""
    try:
        with submitting(workspace.address) as client:
            image = job.environment(options, workspace, spec, code.with_name("image"))
            submitted = job.command(spec, options, code, image, plan.distribution)
            return str(client.jobs.create_or_update(submitted).studio_url or "")
    except DistDLError as error:
        raise errors.rejected(error) if isinstance(error, AzureRefused) else error from None
    except Exception as error:  # noqa: BLE001  azure-ai-ml raises many types, which have no base class in common
        try:  # the job may have been accepted although the response was lost
            services = workspace.job(job.run_name(spec.id))["properties"].get("services") or {}
        except DistDLError:
            raise errors.rejected(error) from None
        return str((services.get("Studio") or {}).get("endpoint") or "")


def _gpus(options: AzureMLOptions) -> int:
    """Return the GPUs of the options' VM size in the catalogue, 0 where it is not there."""
    known = compute.known_size(options.vm_size)
    return known.whole_gpus if known is not None else 0


# checks -------------------------------------------------------------------------------------------


def _check_compute(options: AzureMLOptions) -> list[Check]:
    if not options.compute:
        return [Check("", "Compute", "ok", f"serverless, {options.vm_size}")]
    target = compute.get(options)
    if target is None:
        text = f"the workspace has no compute target named {options.compute}"
        hint = "Set compute to an existing compute target, or create it: distdl clusters compute create"
        return [Check("", "Compute", "error", text, hint, code="azureml-compute")]
    rows = [Check("", "Compute", "ok", f"{target.name}, {target.size}, at most {target.max_instances} nodes")]
    if compute.is_low_priority(target):
        hint = "Save checkpoints, and load the latest one at the start of the code."
        text = "low: Azure may preempt nodes at any time"
        rows.append(Check("", "Priority", "warning", text, hint, code="azureml-priority"))
    return rows


def _missing_modules(options: AzureMLOptions, modules: Sequence[str]) -> list[str]:
    """Return the modules that the generated image does not contain; those of another image are not known."""
    if options.environment not in ("", GENERATED):
        return []
    return [name for name in modules if name.partition(".")[0] not in _MODULES | sys.stdlib_module_names]


def _check_image(options: AzureMLOptions, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    if options.environment not in ("", GENERATED):
        return [Check("", "Image", "info", f"{options.environment}, whose packages are checked when a job runs")]
    rows = [Check("", "Image", "ok", "generated: Open MPI, PyTorch, Horovod; the first build takes a few minutes")]
    for name in (*_missing_modules(options, modules), *(name for name in programs if name not in _PROGRAMS)):
        hint = f"Set the option environment to an image that contains {name}."
        rows.append(
            Check("", name, "error", f"the generated image does not contain {name}", hint, code="azureml-package")
        )
    return rows

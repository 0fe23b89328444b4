"""Azure Machine Learning clusters: jobs wait in Azure's queue and run in an image on its nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distdl_jupyter import azure
from distdl_jupyter.azure import VmSize, identity, load_catalogue, prices
from distdl_jupyter.azure.prices import Price
from distdl_jupyter.clusters.azureml import bootstrap, client, run
from distdl_jupyter.clusters.azureml.client import (
    GENERATED_IMAGE,
    AzureMLOptions,
    Workspace,
    open_computes,
    translate_azure_errors,
)
from distdl_jupyter.clusters.base import (
    Cluster,
    Context,
    Machines,
    NodeCheck,
    NodeInfo,
    NodeState,
    OptionValue,
    Provisioner,
    Run,
    RunNotice,
)
from distdl_jupyter.core.data import PACKAGE_OPTIONS
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.options import check_range
from distdl_jupyter.core.plan import Placement, Plan, RankSlot, assign_ports, option
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore

#: Seconds to watch an accepted change for an early failure, for example an exceeded quota.
WATCH_SECONDS = 8.0
#: Azure's state of a compute cluster -> our state.
_COMPUTE_STATES = {"Creating": "creating", "Updating": "changing", "Deleting": "deleting"}
#: Azure's states of a node -> our state. A node costs money from its preparation until it has left.
_NODE_STATES: Mapping[str, NodeState] = {
    **dict.fromkeys(("idle", "running"), "up"),
    **dict.fromkeys(("preparing", "leaving"), "starting"),
    **dict.fromkeys(("unusable", "preempted"), "down"),
}
#: Upper limit for numbers of nodes and for seconds; a larger value is a mistake.
_MAX_VALUE = 10_000_000
#: Seconds to wait for Azure to end a job that ``sweep`` has canceled.
_SWEEP_SECONDS = 60.0
#: Modules in the generated image besides the standard library. The image also has the programs of all backends.
_IMAGE_MODULES = frozenset({"torch", "horovod", "numpy", "pandas", "sklearn", "cloudpickle", "psutil", "torchvision"})


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """A compute cluster to create. Its nodes have no SSH login; jobs read data with its managed identity."""

    vm_size: str = field(metadata={"help": "VM size of each node, such as Standard_NC4as_T4_v3", "first": True})
    max_nodes: int = option(1, "maximum number of nodes", first=True)
    min_nodes: int = option(0, "nodes that keep running without a job and always cost money", first=True)
    idle_seconds: int = option(600, "seconds without a job after which a node stops")

    def __post_init__(self) -> None:
        for name, minimum in (("max_nodes", 1), ("min_nodes", 0), ("idle_seconds", 60)):
            check_range(minimum, _MAX_VALUE)(getattr(self, name), name)
        if self.min_nodes > self.max_nodes:
            message = f"min_nodes is {self.min_nodes}, but max_nodes is {self.max_nodes}."
            hint = "Lower min_nodes, or raise max_nodes."
            raise InvalidSpec(message, code="azureml-min-above-max-nodes", field="min_nodes", hint=hint)

    def build_entity(self, name: str) -> Any:
        """Return azure-ai-ml's compute entity. Raises InvalidSpec for a retired VM size."""
        from azure.ai.ml.entities import AmlCompute, IdentityConfiguration

        vm_size = find_size(self.vm_size)
        if vm_size is not None and vm_size.is_retired:
            message = f"{vm_size.size} was retired on {vm_size.retirement_date}."
            hint = f"Use {prices.SIZE_PREFIX}{vm_size.successor}: {vm_size.successor_reason}"
            raise InvalidSpec(message, code="azureml-size-retired", field="vm_size", hint=hint)
        return AmlCompute(
            name=name,
            size=vm_size.size if vm_size else self.vm_size.strip(),
            tier="dedicated",
            min_instances=self.min_nodes,
            max_instances=self.max_nodes,
            idle_time_before_scale_down=self.idle_seconds,
            identity=IdentityConfiguration(type="system_assigned"),
            ssh_public_access_enabled=False,
        )


class AzureMLCluster(Cluster, Provisioner):
    """Runs ranks as the processes of a job on Azure ML."""

    name = "azureml"
    title = "Azure ML"
    Options = AzureMLOptions
    is_remote = True
    has_queue = True
    can_mount = True
    compute_spec = ComputeSpec
    dynamic_options = ("subscription_id", "workspace", "compute", "vm_size")
    can_install = True
    can_attach = True
    can_restart = False

    def default_options(self) -> dict[str, Any] | None:
        """Return None, because only the user can name the workspace."""
        return None

    def unavailable(self, options: AzureMLOptions) -> str:
        """Return the remedy if an option is missing, or if azure-ai-ml is not installed."""
        try:
            self.validate(options)
            is_installed = find_spec("azure.ai.ml") is not None
        except InvalidSpec as error:
            return str(error)
        except ModuleNotFoundError:  # of a parent package
            is_installed = False
        return "" if is_installed else "azure-ai-ml is not installed. Run: pip install 'distdl-jupyter[azure]'"

    def validate(self, options: AzureMLOptions) -> None:
        """Raise InvalidSpec if a required option is missing."""
        for name in ("resource_group", "workspace", *(() if options.vm_size else ("compute",))):
            client.require(options, name)

    def process_count_per_node(self, options: AzureMLOptions, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs of the VM size, or 1 if it is unknown."""
        return max(1, _count_gpus(options)) if use_gpu is not False else 1

    def detail(self, options: AzureMLOptions) -> str:
        """Return the compute target and the VM size."""
        compute = f"compute {options.compute}" if options.compute else "serverless"
        return ", ".join(part for part in (compute, options.vm_size) if part)

    def run_checks(
        self, options: AzureMLOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check the sign-in, the workspace, the compute target and the image.

        Nodes are not checked, because starting one costs money and takes minutes. Therefore packages are only checked
        for the image that this package generates.
        """
        account = identity.get_status().account
        if account is None:
            return [NodeCheck("", "Azure", "error", "not signed in", identity.SIGN_IN_HINT, code="azureml-signed-out")]
        rows = [NodeCheck("", "Azure", "ok", f"signed in as {account.name}")]
        step = "Workspace"
        try:
            Workspace.from_options(options).get()
            rows.append(NodeCheck("", step, "ok", options.workspace))
            step = "Compute"
            target = _find_compute(options) if options.compute else None
        except DistDLError as error:
            hint = error.hint or client.CHECK_HINT
            return [*rows, NodeCheck("", step, "error", error.message, hint, code=error.code)]
        if options.compute and target is None:
            text = f"the workspace has no compute target named {options.compute}"
            hint = "Set the option 'compute' to an existing target, or create it: distdl clusters compute create"
            rows.append(NodeCheck("", step, "error", text, hint, code="azureml-compute"))
        else:
            text = f"serverless, {options.vm_size}" if target is None else f"{target.name}, {_describe_compute(target)}"
            rows.append(NodeCheck("", step, "ok", text))
        if options.environment not in ("", GENERATED_IMAGE):
            text = f"{options.environment}, whose packages are checked when a job runs"
            return [*rows, NodeCheck("", "Image", "info", text)]
        text = "generated: Open MPI, PyTorch, Horovod; the first build takes a few minutes"
        rows.append(NodeCheck("", "Image", "ok", text))
        for name in _find_missing_modules(options, modules):
            text = f"the generated image does not contain {name}"
            hint = f"Set the option 'environment' to an image that contains {name}."
            rows.append(NodeCheck("", name, "error", text, hint, code="azureml-package"))
        return rows

    def preview(self, spec: JobSpec, options: AzureMLOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Azure ML names the nodes when the job starts."""
        client.check_spec(spec)
        gpus, per_node = _count_gpus(options) if spec.use_gpu is not False else 0, spec.process_count_per_node
        if spec.use_gpu and options.vm_size and gpus < per_node:
            message = f"use_gpu needs {per_node} GPUs on each node, but {options.vm_size} has {gpus}."
            hint = "Set vm_size to a larger size, or use fewer processes per node."
            raise InvalidSpec(message, code="azureml-too-few-gpus", field="use_gpu", hint=hint)
        slots = []
        for rank in range(spec.node_count * per_node):
            node, local_rank = divmod(rank, per_node)
            slots.append(RankSlot(rank, node, f"node-{node}", local_rank, local_rank % gpus if gpus else None))
        unknown = client.SET_BY_AZURE
        return Placement(tuple(slots), unknown, (), unknown, bootstrap.CORES_PLACEHOLDER, unknown)

    def place(self, spec: JobSpec, ports: int, options: AzureMLOptions, context: Context) -> Placement:
        """Return the preview with placeholders for the addresses and ports, which Azure sets."""
        adds_packages = any(getattr(spec, name) for name in PACKAGE_OPTIONS)
        if not adds_packages and (missing := _find_missing_modules(options, context.modules)):
            message = f"{listing(missing)} {'is' if len(missing) == 1 else 'are'} not in the generated image."
            hint = "Add it with pip_packages, or set the cluster option 'environment' to an image that contains it."
            raise LaunchFailed(message, code="azureml-image-without", hint=hint)
        context.report("stage", "connecting to the Azure ML workspace")
        with translate_azure_errors(options):
            Workspace.from_options(options).get()
        unknown = client.SET_BY_AZURE
        placement = dataclasses.replace(self.preview(spec, options), ports=(unknown,) * ports)
        return assign_ports(placement, context.rank_ports, lambda _, count: (unknown, (unknown,) * count))

    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Upload the job's code and submit it. Raises LaunchFailed with Azure's message."""
        if plan.services and plan.distribution != "mpi":
            message = f"{plan.services[0].name} cannot be started on Azure ML."
            hint = "Use another backend, or a cluster of type ssh or slurm."
            raise LaunchFailed(message, code="azureml-service", hint=hint)
        options = AzureMLOptions(**spec.cluster_options)
        workspace = Workspace.from_options(options)
        code = client.write_code(spec, placement, plan, context)
        uploaded = size(sum(path.stat().st_size for path in code.rglob("*") if path.is_file()))
        context.report("start", f"submitting to Azure ML, {uploaded} of code")
        try:
            studio_url = _submit(spec, options, plan, workspace, code)
        finally:
            client.remove_code(context.folder)
        text = f"Azure ML runs the job as {client.build_run_name(spec.id)}: {studio_url}"
        context.note(RunNotice("info", text, "azureml"))
        if any(source.mode == "mount" for source in spec.data):
            text = "Mounted data is read over the network in every epoch. Download it if it fits on the nodes' disks."
            context.note(RunNotice("warning", text, "mounted"))
        return run.AzureMLRun(spec, workspace, context)

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read_offsets: Mapping[tuple[int, str], int]
    ) -> Run:
        """Follow a submitted job. No request is sent here, so an expired sign-in does not lose the job."""
        return run.AzureMLRun(spec, Workspace(**handle["workspace"]), context, read_offsets=read_offsets)

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Cancel the job and wait until Azure has ended it; its name is derived from the job ID."""
        if handle:
            workspace = Workspace(**handle["workspace"])
        else:
            workspace = Workspace.from_options(AzureMLOptions(**JobStore().find(job_id).read_spec().cluster_options))
        name = client.build_run_name(job_id)
        if not workspace.cancel(name):
            return []
        deadline = time.monotonic() + _SWEEP_SECONDS
        while workspace.get_job(name).get("status") not in client.ENDED_STATES and time.monotonic() < deadline:
            time.sleep(1.0)
        return [f"Azure ML job {name}"]

    def list_choices(self, field: str, options: Mapping[str, Any]) -> list[OptionValue]:
        """Return the account's subscriptions, workspaces or compute clusters, or the VM sizes that Azure offers."""
        names = (*self.dynamic_options, "resource_group")
        values = AzureMLOptions(**{name: str(options.get(name) or "") for name in names})
        if field == "subscription_id":
            usable = [row for row in identity.list_subscriptions() if row.state in ("", "Enabled", "Warned", "PastDue")]
            return [OptionValue(row.id, row.name) for row in usable]
        if field == "vm_size":
            return [OptionValue(size.size, "", size.gpus_text) for size in load_catalogue() if not size.is_retired]
        if field == "compute":
            with open_computes(values) as operations:
                targets = operations.list(compute_type="AmlCompute")
                return [OptionValue(row.name, row.name, _describe_compute(row)) for row in targets]
        if field != "workspace":
            return []
        subscription = client.require(values, "subscription_id")
        uri = f"/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices/workspaces"
        with translate_azure_errors(values):
            rows = list(identity.create_client().iter_items(uri, client.API_WORKSPACES))
        workspaces = sorted((row["id"].split("/")[4], row["name"], row.get("location", "")) for row in rows)
        return [
            OptionValue(name, name, f"{group}, {region}", {"resource_group": group})
            for group, name, region in workspaces
        ]

    def list_nodes(self, options: Any) -> list[NodeInfo]:
        """Return the nodes that are up, starting or stopping. Raises DistDLError."""
        compute = _find_compute(options) if options.compute else None  # serverless nodes only exist for one job
        if compute is None or compute.provisioning_state == "Creating":
            return []
        price, nodes = _get_node_price(compute), []
        costs: dict[str, Any] = {"cost_per_hour": price.per_hour, "currency": price.currency} if price else {}
        with open_computes(options) as operations:
            for node in operations.list_nodes(options.compute):
                # azure-ai-ml 1.35.2 provides some values only under the names of the REST API.
                values = {name.replace("_", "").lower(): value for name, value in vars(node).items() if value}
                azure_state = str(values.get("nodestate", "")).lower()
                name, state = str(values.get("nodeid", "")), _NODE_STATES.get(azure_state, "unknown")
                fields = {"billed": True, **costs} if azure_state != "preempted" else {}
                nodes.append(NodeInfo(name, state, azure_state, **fields))
        return nodes

    def get_machines(self, options: Any) -> Machines | None:
        """Return the state, the size and the price of the compute cluster, or None for serverless nodes."""
        if not options.compute:
            return None
        compute = _find_compute(options, only_clusters=True)
        if compute is None:
            return Machines(exists=False)
        price, problem = _get_node_price(compute), ""
        if compute.provisioning_errors:  # azure-ai-ml only provides the code of the first error
            code = str(compute.provisioning_errors)
            problem = f"Azure could not prepare {compute.name} ({code}). {client.find_remedy(code)}".strip()
        vm_size = format_size_name(compute.size)
        return Machines(
            exists=True,
            state=_COMPUTE_STATES.get(compute.provisioning_state, ""),
            problem=problem,
            size=vm_size,
            detail=f"{vm_size}, {compute.location}",
            min_nodes=compute.min_instances,
            max_nodes=compute.max_instances,
            cost_per_hour=price.per_hour if price else None,
            currency=price.currency if price else "",
            price_source=price.source if price else "",
        )

    def create(self, options: Any, compute_spec: Any) -> None:
        """Request the creation of the compute cluster that the options name."""
        if _find_compute(options) is not None:
            message = f"The workspace {options.workspace} already has a compute target named {options.compute}."
            hint = "Use it, or set the option 'compute' to another name."
            raise ClusterRefused(message, code="azureml-compute-exists", hint=hint)
        _request_change(options, "begin_create_or_update", compute_spec.build_entity(options.compute))

    def delete(self, options: Any) -> None:
        """Request the deletion of the compute cluster and its nodes."""
        compute = _find_compute(options, only_clusters=True)
        if compute is None:
            message = f"The workspace {options.workspace} has no compute cluster named {options.compute}."
            hint = "Create it first: distdl clusters compute create NAME --vm-size SIZE"
            raise ClusterRefused(message, code="azureml-compute-not-found", hint=hint)
        _request_change(options, "begin_delete", compute.name)


def _submit(spec: JobSpec, options: AzureMLOptions, plan: Plan, workspace: Workspace, code: Path) -> str:
    """Submit the job and return its address in the studio. Raises LaunchFailed."""
    try:
        # Without git, azure-ai-ml cannot add the remote URL and branch of the current folder to the job's record, which
        # all users of the workspace can read.
        with client.open_ml_client(workspace, GIT_DIR=os.devnull) as ml, contextlib.redirect_stderr(io.StringIO()):
            image = client.build_environment(options, workspace, spec, code.with_name("image"))
            submitted = client.build_command(spec, options, code, image, plan.distribution)
            return str(ml.jobs.create_or_update(submitted).studio_url or "")
    except DistDLError as error:
        raise client.make_rejection(error) if isinstance(error, AzureRefused) else error from None
    except Exception as error:  # noqa: BLE001  azure-ai-ml raises many types without a common base class
        try:  # the job may have been accepted although the response was lost
            services = workspace.get_job(client.build_run_name(spec.id)).get("services") or {}
        except DistDLError:
            raise client.make_rejection(error) from None
        return str((services.get("Studio") or {}).get("endpoint") or "")


def _count_gpus(options: AzureMLOptions) -> int:
    vm_size = find_size(options.vm_size)
    return vm_size.whole_gpus if vm_size is not None else 0


def _find_missing_modules(options: AzureMLOptions, modules: Sequence[str]) -> list[str]:
    """Return the modules that the generated image lacks; the contents of other images are unknown."""
    if options.environment not in ("", GENERATED_IMAGE):
        return []
    return [name for name in modules if name.partition(".")[0] not in _IMAGE_MODULES | sys.stdlib_module_names]


def find_size(name: str) -> VmSize | None:
    """Return the VM size with this name in any case, or None if it is unknown."""
    with contextlib.suppress(InvalidSpec):
        return azure.find_size(name)
    return None


def format_size_name(name: str) -> str:
    """Return the name of a VM size as Azure documents it; Azure ML returns names in upper case."""
    vm_size = find_size(name)
    return vm_size.size if vm_size else name


def _find_compute(options: Any, *, only_clusters: bool = False) -> Any | None:
    """Return the compute target of the options, or None if it does not exist.

    Raises DistDLError, and with ``only_clusters`` InvalidSpec for a compute target that is not a compute cluster.
    """
    if not options.compute:
        message = "Serverless nodes are created for each job, so there is nothing to create or delete."
        hint = "Set the option 'compute' to use a compute cluster."
        raise ClusterRefused(message, code="azureml-serverless", hint=hint)
    try:
        with open_computes(options) as operations:
            compute = operations.get(options.compute)
    except AzureRefused as error:
        if error.status != 404:
            raise
        return None
    if only_clusters and compute.type.lower() != "amlcompute":
        message = f"{compute.name} is not a compute cluster."
        hint = "Set the option 'compute' to a compute cluster. List them: distdl clusters compute list"
        raise InvalidSpec(message, code="azureml-not-a-compute-cluster", field="compute", hint=hint)
    return compute


def _request_change(options: Any, operation: str, argument: Any) -> None:
    """Request a change and watch it for a few seconds. Raises DistDLError if it fails meanwhile."""
    with open_computes(options) as operations:
        poller = getattr(operations, operation)(argument)
        poller.wait(WATCH_SECONDS)
        if poller.done():
            poller.result()


def _describe_compute(compute: Any) -> str:
    nodes = f"{compute.min_instances} to {plural(compute.max_instances, 'node')}"
    return f"{format_size_name(compute.size)}, {nodes}"


def _get_node_price(compute: Any) -> Price | None:
    """Return the retail price of a node, or None if it is unknown, as for a low-priority node."""
    if str(compute.tier).lower().startswith("low"):
        return None
    return prices.look_up(format_size_name(compute.size), compute.location)[0]

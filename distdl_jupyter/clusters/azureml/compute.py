"""Compute clusters of an Azure ML workspace: listed, created and deleted through azure-ai-ml.

azure-ai-ml takes seconds to import, so it is imported when a compute cluster is first requested. The status of a
compute cluster is cached for some seconds, because pages poll it.
"""

from __future__ import annotations

import re
import threading
import time
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import VmSize, catalogue, identity, prices
from distdl_jupyter.clusters.azureml import errors
from distdl_jupyter.clusters.azureml.client import Address, compute_operations, subscription_of
from distdl_jupyter.clusters.base import Choice, Cluster, Machines, NodeInfo, NodeState
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, InvalidSpec
from distdl_jupyter.core.humanize import plural

if TYPE_CHECKING:
    from distdl_jupyter.azure.prices import Price

#: Seconds for which a status is cached.
CACHE_SECONDS = 5.0
#: Seconds for which an accepted change is watched for an early failure, for example of a quota.
WATCH_SECONDS = 8.0
FIELDS = ("subscription_id", "resource_group", "workspace", "compute", "vm_size")
_WORKSPACES_API = "2024-10-01"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")
_STATES = {"Creating": "creating", "Updating": "changing", "Deleting": "deleting"}
#: Azure's state of a node -> ours, with a detail. A node costs money from its preparation until it has left.
_NODES: Mapping[str, tuple[NodeState, str]] = {
    "idle": ("up", ""),
    "running": ("up", ""),
    "preparing": ("starting", "is being prepared"),
    "leaving": ("starting", "is leaving"),
    "unusable": ("down", "is unusable: Azure could not prepare it, and it costs money until it is removed"),
    "preempted": ("down", "was preempted by Azure, as low-priority nodes can be"),
}


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """The compute cluster to create, without SSH login; jobs read data with the identity that Azure manages."""

    vm_size: str = field(metadata={"help": "VM size of each node, such as Standard_NC4as_T4_v3", "first": True})
    max_nodes: int = field(default=1, metadata={"help": "maximum number of nodes", "first": True})
    min_nodes: int = field(
        default=0, metadata={"help": "nodes that keep running without a job and always cost money", "first": True}
    )
    idle_seconds: int = field(default=600, metadata={"help": "seconds without a job after which a node stops"})

    def __post_init__(self) -> None:
        for name, minimum in (("max_nodes", 1), ("min_nodes", 0), ("idle_seconds", 60)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be an integer of at least {minimum}.",
                    code="azureml-number-invalid",
                    field=name,
                )
        if self.min_nodes > self.max_nodes:
            raise InvalidSpec(
                f"min_nodes is {self.min_nodes}, but max_nodes is {self.max_nodes}.",
                code="azureml-min-above-max-nodes",
                field="min_nodes",
                hint="Lower min_nodes, or raise max_nodes.",
            )

    @property
    def size(self) -> str:
        """The size as Azure writes it. Raises InvalidSpec for a retired one."""
        size = known_size(self.vm_size)
        if size is not None and size.retired:
            raise InvalidSpec(
                f"{size.size} was retired on {size.retirement_date}.",
                code="azureml-size-retired",
                field="vm_size",
                hint=f"Use {prices.PREFIX}{size.successor}: {size.successor_reason}",
            )
        return size.size if size else self.vm_size.strip()

    def entity(self, name: str) -> Any:
        """Return azure-ai-ml's description of it. Raises InvalidSpec."""
        from azure.ai.ml.entities import AmlCompute, IdentityConfiguration

        return AmlCompute(
            name=name,
            size=self.size,
            tier="dedicated",
            min_instances=self.min_nodes,
            max_instances=self.max_nodes,
            idle_time_before_scale_down=self.idle_seconds,
            identity=IdentityConfiguration(type="system_assigned"),
            ssh_public_access_enabled=False,
        )


def known_size(name: str) -> VmSize | None:
    """Return a size of the catalogue by its whole name, in any case, None for an unknown one."""
    plain = name.strip().lower().removeprefix("standard_")
    return next((size for size in catalogue() if size.name.lower() == plain), None)


def size_name(name: str) -> str:
    """Return a size's name as documents write it; Azure ML answers in capitals."""
    size = known_size(name)
    return size.size if size else name


_lock = threading.Lock()
_cache: dict[tuple[Address, str, str], tuple[float, Any]] = {}


def get(options: Any, *, fresh: bool = False) -> Any | None:
    """Return azure-ai-ml's compute target of the options, None if it does not exist. Raises DistDLError."""
    return _cached(options, "get", fresh=fresh)


def _cached(options: Any, call: str, *, fresh: bool = False) -> Any | None:
    """Return the result of a call of azure-ai-ml for the compute target; it is cached for CACHE_SECONDS."""
    key = (Address.of(options), options.compute, call)
    with _lock:
        when, value = _cache.get(key, (float("-inf"), None))
    if not fresh and time.monotonic() - when < CACHE_SECONDS:
        return value
    try:
        with errors.translated(options):
            value = getattr(compute_operations(key[0]), call)(options.compute)
            value = list(value) if call == "list_nodes" else value
    except AzureRefused as error:
        if error.status != 404:
            raise
        value = None
    with _lock:
        _cache[key] = time.monotonic(), value
    return value


def forget() -> None:
    """Drop the cached statuses."""
    with _lock:
        _cache.clear()


def _change(options: Any, call: str, argument: Any) -> None:
    """Request a change and return when Azure has accepted it. Raises DistDLError, also for an early failure."""
    forget()
    with errors.translated(options):
        poller = getattr(compute_operations(Address.of(options)), call)(argument)
        poller.wait(WATCH_SECONDS)
        if poller.done():
            poller.result()
    forget()


class ComputeClusters(Cluster, ABC):
    """The part of a cluster of type azureml that manages its compute cluster."""

    title = "Azure ML"
    complete = False
    far = True
    bills = True
    can_create = True
    Wanted = ComputeSpec
    asks = FIELDS

    def choices(self, field: str, options: Mapping[str, Any]) -> list[Choice]:
        """Return the subscriptions, workspaces and compute clusters that the account may see, and the catalogue."""
        values = SimpleNamespace(**{name: str(options.get(name) or "") for name in FIELDS})
        if field == "subscription_id":
            usable = [row for row in identity.subscriptions() if row.state in ("", "Enabled", "Warned", "PastDue")]
            return [Choice(row.id, row.name) for row in usable]
        if field == "vm_size":
            return [Choice(size.size, "", size.gpus_text) for size in catalogue() if not size.retired]
        if field == "compute":
            with errors.translated(values):
                listed = compute_operations(Address.of(values)).list(compute_type="AmlCompute")
                return [Choice(row.name, row.name, _size_and_nodes(row)) for row in listed]
        if field not in ("workspace", "resource_group"):
            return []
        with errors.translated(values):
            path = f"/subscriptions/{subscription_of(values)}/providers/Microsoft.MachineLearningServices/workspaces"
            rows = list(identity.rest().pages(path, _WORKSPACES_API))
        workspaces = sorted((row["id"].split("/")[4], row["name"], row.get("location", "")) for row in rows)
        if field == "resource_group":
            return [Choice(group) for group in sorted({group for group, _, _ in workspaces})]
        return [
            Choice(name, name, f"{group}, {region}", {"resource_group": group}) for group, name, region in workspaces
        ]

    def nodes(self, options: Any) -> list[NodeInfo]:
        """Return the nodes that are up, come up or go. Raises DistDLError."""
        compute = get(options) if options.compute else None  # serverless nodes come and go with one job
        if compute is None or compute.provisioning_state == "Creating":
            return []
        price = _price(compute)
        return [_node(node, compute, price) for node in _cached(options, "list_nodes") or ()]

    def machines(self, options: Any) -> Machines | None:
        """Return the compute cluster as a whole, None for serverless nodes."""
        if not options.compute:
            return None
        compute = get(options)
        if compute is None:
            return Machines(exists=False)
        if compute.type.lower() != "amlcompute":
            raise InvalidSpec(
                f"{compute.name} is not a compute cluster.",
                code="azureml-not-a-compute-cluster",
                field="compute",
                hint="Set compute to a compute cluster. List them: distdl clusters compute list",
            )
        price = _price(compute)
        return Machines(
            exists=True,
            state=_STATES.get(compute.provisioning_state, ""),
            problem=_problem(compute),
            size=size_name(compute.size),
            detail=_detail(compute),
            min_nodes=compute.min_instances,
            max_nodes=compute.max_instances,
            cost_per_hour=price.per_hour if price else None,
            currency=price.currency if price else "",
            price_source=price.source if price else "",
        )

    def create(self, options: Any, machine_spec: Any) -> None:
        """Request the compute cluster that the options name."""
        if not _NAME.fullmatch(options.compute):
            raise InvalidSpec(
                f"{options.compute!r} is not a valid name for a compute cluster.",
                code="azureml-compute-name",
                field="compute",
                hint="Set the option compute to 3 to 24 letters, digits and dashes, starting with a letter.",
            )
        if get(options, fresh=True) is not None:
            raise ClusterRefused(
                f"The workspace {options.workspace} already has a compute target named {options.compute}.",
                code="azureml-compute-exists",
                hint="Set the option compute to another name, or use this one.",
            )
        _change(options, "begin_create_or_update", machine_spec.entity(options.compute))

    def delete(self, options: Any) -> None:
        """Request the end of the compute cluster and its nodes."""
        if not options.compute:
            raise ClusterRefused(
                "Serverless nodes are created for each job, so there is nothing to delete.",
                code="azureml-serverless",
                hint="Set the option compute to use a compute cluster.",
            )
        compute = get(options, fresh=True)
        if compute is None:
            raise ClusterRefused(
                f"The workspace {options.workspace} has no compute cluster named {options.compute}.",
                code="azureml-compute-not-found",
                hint="Create it first: distdl clusters compute create NAME --vm-size SIZE",
            )
        if compute.type.lower() != "amlcompute":
            raise ClusterRefused(
                f"{compute.name} is not a compute cluster. Only compute clusters can be deleted here.",
                code="azureml-compute-kind",
                hint="Delete it in Azure ML studio.",
            )
        _change(options, "begin_delete", compute.name)


def _node(node: Any, compute: Any, price: Price | None) -> NodeInfo:
    # azure-ai-ml 1.35.2 gives some values under their names in the REST API only.
    values = {name.replace("_", "").lower(): value for name, value in vars(node).items() if value is not None}
    azure_state, run = str(values.get("nodestate", "")).lower(), values.get("runid")
    state, detail = _NODES.get(azure_state, ("unknown", f"state in Azure: {azure_state or 'none'}"))
    size, billed = known_size(compute.size), azure_state != "preempted"
    return NodeInfo(
        name=str(values.get("nodeid", "")),
        state=state,
        detail=f"runs {run}" if run and state == "up" else detail,
        gpus=int(size.gpu_count) if size else 0,
        gpu_name=size.gpu if size else "",
        cores=(size.vcpus or 0) if size else 0,
        billed=billed,
        cost_per_hour=price.per_hour if price and billed else None,
        currency=price.currency if price and billed else "",
    )


def _problem(compute: Any) -> str:
    """Return why the last change failed; azure-ai-ml tells the code of the first error."""
    if not compute.provisioning_errors:
        return f"The last change of {compute.name} failed in Azure." if compute.provisioning_state == "Failed" else ""
    code = str(compute.provisioning_errors)
    return f"Azure could not prepare {compute.name} ({code}). {errors.remedy(code)}".strip()


def _size_and_nodes(compute: Any) -> str:
    parts = [size_name(compute.size), f"{compute.min_instances} to {plural(compute.max_instances, 'node')}"]
    return ", ".join(parts + (["low priority"] if is_low_priority(compute) else []))


def _detail(compute: Any) -> str:
    parts = [size_name(compute.size), compute.location]
    if is_low_priority(compute):
        parts.append("low priority: a preempted job restarts, so save checkpoints")
    if compute.idle_time_before_scale_down:
        parts.append(f"nodes stop after {compute.idle_time_before_scale_down / 60:g} min without a job")
    return ", ".join(parts)


def is_low_priority(compute: Any) -> bool:
    """Return whether its nodes can be preempted."""
    return str(compute.tier).lower().replace("_", "") == "lowpriority"


def _price(compute: Any) -> Price | None:
    """Return what a node costs per hour by the Retail Prices API, None for one that can be preempted."""
    return None if is_low_priority(compute) else prices.lookup(size_name(compute.size), compute.location)[0]

"""The machines of a cluster of the kind azureml: looked at, made, scaled and unmade, with what they cost.

What a look sees is kept for some seconds, because pages look every few: less while nodes come and go. How a job runs
there is not known here.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.azureml import choices, refusals
from distdl_jupyter.clusters.azureml.computes import Compute, Computes, Place
from distdl_jupyter.clusters.azureml.wanted import ComputeWanted, check_name, known_size, minutes
from distdl_jupyter.clusters.base import Cluster, NodeInfo, NodeState, Notice
from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec
from distdl_jupyter.core.humanize import plural

if TYPE_CHECKING:
    from distdl_jupyter.azure.prices import Price

#: Seconds for which a look is good enough, and while something changes.
STEADY, MOVING = 10.0, 2.0
_ENDED = ("Succeeded", "Failed", "Canceled")
_WORDS = {"Creating": "creating", "Updating": "changing", "Deleting": "deleting", "Unknown": "changing"}
#: Azure's states of a node (``NodeState``), as ours; a machine costs from its preparation until it has left.
_NODES: Mapping[str, tuple[NodeState, str]] = {
    "idle": ("up", ""),
    "running": ("up", ""),
    "preparing": ("starting", "is being prepared"),
    "leaving": ("starting", "is leaving"),
    "unusable": ("down", "is unusable: Azure could not prepare it, and it costs money until it is removed"),
    "preempted": ("down", "was preempted by Azure, as low-priority nodes can be"),
}
_FREE = frozenset({"preempted"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A compute cluster (None: there is none) with its nodes as Azure tells them, and when that was."""

    compute: Compute | None
    nodes: tuple[Mapping[str, Any], ...]
    when: float

    @property
    def moves(self) -> bool:
        """Whether something changes there just now."""
        if self.compute is None or self.compute.state not in _ENDED or self.compute.resizing:
            return True
        return any(node.get("nodeState") in ("preparing", "leaving") for node in self.nodes)


_lock = threading.Lock()
_seen: dict[str, Seen] = {}


def see(options: Place, *, fresh: bool = False) -> Seen:
    """Return the compute cluster as it is now, or was some seconds ago. Raises DistDLError."""
    key = json.dumps([options.subscription_id, options.resource_group, options.workspace, options.compute])
    with _lock:
        last = _seen.get(key)
    if last is not None and not fresh and time.monotonic() - last.when < (MOVING if last.moves else STEADY):
        return last
    there = Computes(options)
    compute = there.get()
    alive = compute is not None and compute.kind == "AmlCompute" and compute.state != "Creating"
    found = Seen(compute, tuple(there.nodes()) if alive else (), time.monotonic())
    with _lock:
        _seen[key] = found
    return found


def forget() -> None:
    """Look anew the next time."""
    with _lock:
        _seen.clear()


class Managed(Cluster, ABC):
    """The part of a cluster of the kind azureml that knows its machines."""

    title = "Azure ML"
    complete = False
    far = True
    bills = True
    can_scale = True
    can_create = True
    Wanted = ComputeWanted
    asks = choices.FIELDS

    def choices(self, field: str, options: Mapping[str, Any]) -> list[Choice]:
        """Return what the account that is signed in sees of subscriptions, workspaces, compute clusters and sizes."""
        return choices.choices(field, options) if field in choices.FIELDS else []

    def nodes(self, options: Any) -> list[NodeInfo]:
        """Return the nodes that are up, come up or go. Raises DistDLError when Azure does not tell."""
        if not options.compute:
            return []  # serverless nodes come and go with one job
        found = see(options)
        if found.compute is None:
            return []
        price = _price_of(found.compute)
        return [_node(node, found.compute, price) for node in found.nodes]

    def machines(self, options: Any) -> Machines | None:
        """Return the compute cluster as a whole, None for serverless nodes."""
        if not options.compute:
            return None
        compute = see(options).compute
        if compute is None:
            return Machines(exists=False)
        if compute.kind != "AmlCompute":
            raise InvalidSpec(
                f"{compute.name} is a {compute.kind}, not a compute cluster.",
                code="azureml-not-a-compute-cluster",
                field="compute",
                hint="Set compute to a compute cluster. List them: distdl clusters compute list",
            )
        price = _price_of(compute)
        return Machines(
            exists=True,
            state=_WORDS.get(compute.state, "") or ("resizing" if compute.resizing else ""),
            problem=_problem(compute),
            size=choices.proper(compute.vm_size),
            detail=_detail(compute),
            min_nodes=compute.min_nodes,
            max_nodes=compute.max_nodes,
            cost_per_hour=price.per_hour if price else None,
            currency=price.currency if price else "",
            price_source=price.source if price else "",
        )

    def max_node_count(self, options: Any, nodes: int) -> int:
        """Return how many nodes may be up at once."""
        if not options.compute:
            return nodes
        compute = see(options).compute
        return max(nodes, compute.max_nodes) if compute else nodes

    def scale(self, options: Any, node_count: int) -> Any:
        """Let at most so many nodes be up; fewer stay up without a job when there would be more than that."""
        compute = _existing(options)
        if node_count < 1:
            raise InvalidSpec(
                "node_count of a compute cluster must be at least 1.",
                code="azureml-node-count",
                field="node_count",
                hint="Idle nodes stop automatically. To remove the compute cluster, delete it.",
            )
        Computes(options).scale(least=min(compute.min_nodes, node_count), most=node_count, idle=compute.idle)
        forget()
        return options

    def keep_up(self, options: Any, node_count: int) -> None:
        """Keep so many nodes up without a job too."""
        compute = _existing(options)
        if not 0 <= node_count <= compute.max_nodes:
            most = plural(compute.max_nodes, "node")
            raise InvalidSpec(f"{compute.name} can have at most {most}.", code="azureml-min-nodes", field="min_nodes",
                              hint="Lower min_nodes, or raise the maximum number of nodes first.")  # fmt: skip
        Computes(options).scale(least=node_count, most=compute.max_nodes, idle=compute.idle)
        forget()

    def forecast(self, options: Any, wanted: Any) -> Machines:
        """Return what would be made, with the price of a node in the workspace's region."""
        if not options.compute:
            raise InvalidSpec(
                "compute is missing.",
                code="azureml-compute-missing",
                field="compute",
                hint="Set the option compute to a name for the compute cluster.",
            )
        check_name(options.compute)
        body = wanted.body(Computes(options).location())
        price = _price(wanted.size, body["location"], low_priority=wanted.low_priority)
        return Machines(
            exists=False,
            size=wanted.size,
            detail=body["location"],
            min_nodes=wanted.min_nodes,
            max_nodes=wanted.max_nodes,
            cost_per_hour=price.per_hour if price else None,
            currency=price.currency if price else "",
            price_source=price.source if price else "",
        )

    def create(self, options: Any, wanted: Any) -> None:
        """Ask for the compute cluster that the options name."""
        check_name(options.compute)
        there = Computes(options)
        if (found := there.get()) is not None:
            what = "compute cluster" if found.kind == "AmlCompute" else found.kind
            raise ClusterRefused(
                f"The workspace {options.workspace} already has a {what} named {found.name}.",
                code="azureml-compute-exists",
                hint="Set the option compute to another name, or use this one.",
            )
        body = wanted.body(there.location())
        if wanted.subnet:
            wanted.check_network(there.subnet_prefixes(wanted.subnet))
        there.put(body)
        forget()

    def delete(self, options: Any) -> None:
        """Ask for the end of the compute cluster and its nodes."""
        compute = _existing(options)
        if compute.kind != "AmlCompute":
            raise ClusterRefused(
                f"{compute.name} is a {compute.kind}. Only compute clusters can be deleted here.",
                code="azureml-compute-kind",
                hint="Delete it in Azure ML studio.",
            )
        Computes(options).delete()
        forget()

    def afterwards(self, options: Any) -> list[Notice]:
        """Say which nodes go on costing money: those that stay up without a job."""
        compute = see(options, fresh=True).compute if options.compute else None
        if compute is None or not compute.min_nodes:
            return []
        stay = (
            ("keeps running without jobs and costs") if compute.min_nodes == 1 else "keep running without jobs and cost"
        )
        text = f"{plural(compute.min_nodes, 'node')} of {compute.name} {stay} money"
        return [Notice("warning", f"{text}. Set min_nodes=0 to stop idle nodes.", "nodes-stay-up")]


def _existing(options: Any) -> Compute:
    if not options.compute:
        raise ClusterRefused(
            "Serverless nodes are created for each job, so there is nothing to change.",
            code="azureml-serverless",
            hint="Set the option compute to use a compute cluster.",
        )
    compute = see(options, fresh=True).compute
    if compute is None:
        raise ClusterRefused(
            f"The workspace {options.workspace} has no compute cluster named {options.compute}.",
            code="azureml-compute-not-found",
            hint="Create it first: distdl clusters compute create NAME --vm-size SIZE",
        )
    return compute


def _node(answer: Mapping[str, Any], compute: Compute, price: Price | None) -> NodeInfo:
    word = str(answer.get("nodeState") or "").lower()
    state, detail = _NODES.get(word, ("unknown", f"state in Azure: {word or 'none'}"))
    run = str(answer.get("runId") or "")
    size = known_size(compute.vm_size)
    billed = word not in _FREE
    return NodeInfo(
        name=str(answer.get("nodeId", "")),
        state=state,
        detail=f"runs {run}" if run and state == "up" else detail,
        gpus=int(size.gpu_count) if size else 0,
        gpu_name=size.gpu if size else "",
        cores=(size.vcpus or 0) if size else 0,
        billed=billed,
        cost_per_hour=price.per_hour if price and billed else None,
        currency=price.currency if price and billed else "",
    )


def _problem(compute: Compute) -> str:
    """Return what Azure says of a change that failed, or of nodes that it could not get."""
    if not compute.errors:
        return f"The last change of {compute.name} failed in Azure." if compute.state == "Failed" else ""
    says, hint = refusals.explained(*compute.errors[0])
    return f"{says} {hint}".strip()


def _detail(compute: Compute) -> str:
    parts = [choices.proper(compute.vm_size), compute.location]
    if compute.low_priority:
        parts.append("low priority: a preempted job restarts, so save checkpoints")
    if (idle := minutes(compute.idle)) is not None:
        parts.append(f"nodes stop after {idle:g} min without a job")
    return ", ".join(parts)


def _price_of(compute: Compute) -> Price | None:
    return _price(compute.vm_size, compute.location, low_priority=compute.low_priority)


def _price(size: str, location: str, *, low_priority: bool) -> Price | None:
    """Return what a node costs per hour by the Retail Prices API, None for one that can be preempted."""
    from distdl_jupyter.azure import prices

    return None if low_priority else prices.lookup(choices.proper(size), location)[0]

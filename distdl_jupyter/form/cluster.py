"""The chosen cluster: its nodes now, what would keep the job from running, and what its nodes cost.

Nodes are those of clusters of other machines: the form's checks cover this machine. A price is the user's own, or that
of the Retail Prices API for a cluster that bills, in the region of ``%dist_config azure``. Without a region no request
is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distdl_jupyter.azure import prices
from distdl_jupyter.azure.prices import Price
from distdl_jupyter.clusters import cluster_configs, status
from distdl_jupyter.clusters.status import CachedStatus
from distdl_jupyter.clusters.tables import merge_hosts
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import money
from distdl_jupyter.form.schema import ClusterNow, CostNow
from distdl_jupyter.views.card import hourly_cost_text

_LEVELS = {"error": 0, "warning": 1}


def poll(compute_target: str, backend: str, timeout: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return what is known of a cluster, None when it is not of other machines; polling continues by itself."""
    try:
        target = cluster_configs.find(compute_target)
        if not registry.get("clusters", target.kind).far:
            return None
        needs = status.needs(backend)
    except DistDLError:
        return None
    return status.FORMS.cached(target, needs, timeout, fresh=fresh)


def state_of(status: CachedStatus | None) -> ClusterNow | None:
    """Return the state for a page; of the checks only those that need a remedy."""
    if status is None:
        return None
    known = status.status
    wrong = [check for check in merge_hosts(status.checks or ()) if check.level in _LEVELS]
    return ClusterNow(
        looking=status.looking,
        known=known is not None,
        problem=known.problem if known else "",
        remedy=known.remedy if known else "",
        code=known.code if known else "",
        nodes=known.nodes if known else (),
        checked=status.checks is not None,
        checks=tuple(sorted(wrong, key=lambda check: _LEVELS[check.level])),
    )


def gpus_per_node(status: CachedStatus | None) -> int:
    """Return the GPUs that every node has, as far as it is known."""
    nodes = [node for node in status.status.nodes if node.state == "up"] if status and status.status else []
    return min((node.gpus for node in nodes), default=0)


# cost -------------------------------------------------------------------------------------------------

NOT_USUAL = "Spot prices vary. Enter the price yourself."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """The description of the nodes that a cluster rents; ``size`` "" is unknown."""

    bills: bool = False
    size: str = ""
    #: They may be taken away.
    interruptible: bool = False


def rented(compute_target: str, vm_size: str) -> Rented:
    """Return what is known of the nodes of a cluster without a request to it."""
    try:
        target = cluster_configs.find(compute_target)
        bills = bool(registry.get("clusters", target.kind).bills)
    except DistDLError:
        return Rented()
    if not bills:
        return Rented()
    options: Mapping[str, Any] = target.options
    spot = str(options.get("job_tier") or "").lower() == "spot"
    return Rented(
        bills=True,
        size=vm_size or str(options.get("vm_size") or ""),
        interruptible=spot,
    )


def cost_of(nodes: Rented, own: str, node_count: int) -> CostNow | None:
    """Return what all nodes cost now, None where the cluster costs nothing and no price was given."""
    if not nodes.bills and not own.strip():
        return None
    try:
        price, problem = _price(nodes, own)
    except InvalidSpec as error:
        return CostNow(bills=nodes.bills, nodes=node_count, problem=str(error), wrong=True)
    unpriced = CostNow(bills=nodes.bills, nodes=node_count, problem=problem)
    if price is None:
        return unpriced
    return replace(
        unpriced,
        per_hour=money(price.per_hour * node_count, price.currency),
        words=hourly_cost_text(price.per_hour, price.currency, node_count),
        source=price.source,
    )


def _price(nodes: Rented, own: str) -> tuple[Price | None, str]:
    """Return the price of a node, or why there is none. Raises InvalidSpec."""
    if own.strip():
        return prices.own_price(own), ""
    if nodes.interruptible:
        return None, NOT_USUAL
    if not nodes.size:
        return None, "The price is unknown because no VM size is selected."
    try:
        return prices.lookup(nodes.size)
    except DistDLError as error:
        return None, str(error)

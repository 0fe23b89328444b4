"""The selected cluster: its current nodes, problems that would prevent the job, and the cost of its nodes.

Only remote clusters have nodes here, because the form's checks cover this machine. The price is set by the user, or
requested from the Retail Prices API for a billed cluster in the region of ``%dist_config azure``. Without a region, no
request is sent.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import NamedTuple

from distdl_jupyter.azure import prices
from distdl_jupyter.clusters import cluster_configs, status
from distdl_jupyter.clusters.base import Cluster, Provisioner
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.handle import merge_hosts
from distdl_jupyter.clusters.status import CachedStatus
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import money
from distdl_jupyter.form.schema import CostNow, FormValues
from distdl_jupyter.views.card import hourly_cost_text

#: Levels of checks that need a remedy, the most severe first.
_LEVELS = ("error", "warning")


def find(name: str) -> tuple[ClusterConfig | None, Cluster | None]:
    """Return a cluster and its class; None and None if it is unknown or cannot be loaded."""
    with contextlib.suppress(DistDLError):
        target = cluster_configs.find(name)
        return target, registry.get("clusters", target.kind)
    return None, None


def poll(compute_target: str, backend: str, timeout: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return the current state of a remote cluster, None for others; polling continues in the background."""
    target, plugin = find(compute_target)
    if target is not None and plugin is not None and plugin.is_remote:
        with contextlib.suppress(DistDLError):
            return status.FORMS.cached(target, status.needs(backend), timeout, fresh=fresh)
    return None


def with_problems(status: CachedStatus) -> CachedStatus:
    """Return the state with only those checks that need a remedy, the most severe first."""
    if status.checks is None:
        return status
    checks = [check for check in merge_hosts(status.checks) if check.level in _LEVELS]
    return replace(status, checks=tuple(sorted(checks, key=lambda check: _LEVELS.index(check.level))))


def gpus_per_node(status: CachedStatus | None) -> int:
    """Return the number of GPUs of every node, if known."""
    nodes = [node for node in status.status.nodes if node.state == "up"] if status and status.status else []
    return min((node.gpus for node in nodes), default=0)


# cost -------------------------------------------------------------------------------------------------

NOT_USUAL = "Spot prices vary. Enter the price yourself."


class Rented(NamedTuple):
    """The nodes that a cluster rents; ``size`` is "" if unknown, and ``interruptible`` nodes may be preempted."""

    bills: bool = False
    size: str = ""
    interruptible: bool = False


def rented(compute_target: str, vm_size: str) -> Rented:
    """Return the known facts about the nodes of a cluster without a request to it."""
    target, plugin = find(compute_target)
    is_provisioner = isinstance(plugin, Provisioner)
    if target is None or not is_provisioner:
        return Rented()
    options = target.options
    is_spot = str(options.get("job_tier") or "").lower() == "spot"
    return Rented(bills=True, size=vm_size or str(options.get("vm_size") or ""), interruptible=is_spot)


def cost(values: FormValues) -> CostNow | None:
    """Return the current cost of all nodes, None if they are free. A price typed by the user takes precedence."""
    nodes, node_count = rented(values.compute_target, values.vm_size), values.node_count
    if not nodes.bills and not values.price_per_hour.strip():
        return None
    price, problem, is_wrong = None, "", False
    if values.price_per_hour.strip():
        try:
            price = prices.own_price(values.price_per_hour)
        except InvalidSpec as error:
            problem, is_wrong = str(error), True
    elif nodes.interruptible:
        problem = NOT_USUAL
    elif not nodes.size:
        problem = "The price is unknown because no VM size is selected."
    else:
        price, problem = prices.lookup(nodes.size)
    if price is None:
        return CostNow(bills=nodes.bills, nodes=node_count, problem=problem, wrong=is_wrong)
    return CostNow(
        bills=nodes.bills,
        nodes=node_count,
        per_hour=money(price.per_hour * node_count, price.currency),
        text=hourly_cost_text(price.per_hour, price.currency, node_count),
        source=price.source,
        problem=problem,
    )

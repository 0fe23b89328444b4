"""Money in the launch form: what the user says a node costs, and what follows from it.

The price is the user's own, or that of the Retail Prices API for a cluster that bills, in the region of
``%dist_config azure``. Without a region no request is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distdl_jupyter.azure import prices
from distdl_jupyter.azure.prices import Price
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import money
from distdl_jupyter.form.schema import CostNow
from distdl_jupyter.views.card import hourly_cost_text

NOT_USUAL = "Spot prices vary. Enter the price yourself."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """What a cluster says of the nodes it rents; ``size`` "" is not known."""

    bills: bool = False
    size: str = ""
    #: They may be taken away.
    interruptible: bool = False


def rented(compute_target: str, vm_size: str) -> Rented:
    """Return what is known of the nodes of a cluster without asking it."""
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


def shown(nodes: Rented, own: str, node_count: int) -> CostNow | None:
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

"""Money in the launch form: what the user says a node costs, and what follows from it.

Only where something is known: the user's own price, or that of the Retail Prices API for a cluster that bills, in the
region of ``%dist_config azure``. Without a region nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distdl_jupyter import cluster_configs, registry
from distdl_jupyter.azure import cost, prices
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
    #: They are those of a compute cluster that is there, and count in its quota already.
    exist: bool = False


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
        exist=bool(options.get("compute")),
    )


def shown(nodes: Rented, own: str, node_count: int, timeout: float) -> CostNow | None:
    """Return what all nodes cost now, None where the cluster costs nothing and no price was given.

    A question to the price list is waited for so many seconds, and goes on by itself.
    """
    if not nodes.bills and not own.strip():
        return None
    try:
        found, problem, looking = _price(nodes, own, timeout)
    except InvalidSpec as error:
        return CostNow(bills=nodes.bills, nodes=node_count, problem=str(error), wrong=True)
    unpriced = CostNow(bills=nodes.bills, nodes=node_count, looking=looking, problem=problem)
    if found is None:
        return unpriced
    return replace(
        unpriced,
        per_hour=money(found.per_hour * node_count, found.currency),
        words=hourly_cost_text(found.per_hour, found.currency, node_count),
        source=found.source,
    )


def _price(nodes: Rented, own: str, timeout: float) -> tuple[cost.Rate | None, str, bool]:
    """Return the price of a node, why there is none, and whether it is being asked for. Raises InvalidSpec."""
    if own.strip():
        return cost.own(own), "", False
    if nodes.interruptible:
        return None, NOT_USUAL, False
    if not nodes.size:
        return None, "The price is unknown because no VM size is selected.", False
    try:
        look = prices.look(nodes.size, timeout=timeout)
    except DistDLError as error:
        return None, str(error), False
    price = look.price
    return (cost.Rate(price.per_hour, price.currency, price.source) if price else None), look.problem, look.looking

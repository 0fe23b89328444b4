"""What one epoch costs: where a study ran, at the user's own price, and on VM sizes whose price was fetched.

Nothing is asked for here, and nothing is guessed: a size without a kept price, or without a stated network rate, is
left out. How fast a GPU of a size is, is not known here: the times are as if it were as fast as what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import TIMES, count, plural
from distdl_jupyter.views.schema import ScalingPrice

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.core.link import Link
    from distdl_jupyter.core.scaling import Forecast, Point, Scaling
    from distdl_jupyter.views.scaling_panel import Facts

#: VM sizes that are shown, the cheapest epoch first.
_MOST = 4
AS_FAST = "This assumes that each GPU is as fast as one process here."


@dataclass(frozen=True, slots=True)
class Prices:
    """The rows with what they are of, and on what they rest."""

    rows: tuple[ScalingPrice, ...] = ()
    title: str = ""
    notes: tuple[str, ...] = ()


def prices(found: Scaling, facts: Facts, ahead: Forecast | None) -> Prices:
    """Return what an epoch costs, with the forecast ``ahead``; nothing where its samples or all prices are unknown."""
    samples = facts.epoch_samples
    if samples is None or not found.points or not all(one.counts_samples for one in found.points):
        return Prices()
    rented, sources = _rented(found, ahead.processes, samples) if ahead else ([], ())
    if ahead and rented:
        title = f"{plural(ahead.processes, 'process')}, forecast, {count(round(samples))} samples"
        return Prices(tuple(rented), title, (AS_FAST, f"Prices: {'; '.join(sources)}."))
    if facts.price_per_hour is None:
        return Prices()
    last = found.of(found.backends[0])[-1]
    title = f"{plural(last.processes, 'process')}, measured, {count(round(samples))} samples"
    return Prices((_own(found, last, facts, samples),), title, (f"Prices: {facts.price_source}.",))


def _own(found: Scaling, last: Point, facts: Facts, samples: float) -> ScalingPrice:
    """Return the price of what was measured."""
    assert facts.price_per_hour is not None
    seconds, per_hour = samples / last.rate, last.nodes * facts.price_per_hour
    cost, share = per_hour * seconds / 3600, last.error / last.rate
    return ScalingPrice(
        size=facts.vm_size.removeprefix("Standard_") or facts.target,
        devices=f"{last.nodes} {TIMES} {plural(last.processes // last.nodes, 'process')}", network="", speed="",
        infiniband=False, efficiency=100 * found.efficiency(last), efficiency_error=0.0, seconds=seconds,
        per_hour=per_hour, cost=cost, low=cost * (1 - share), high=cost * (1 + share), currency=facts.currency,
        lowest=False,
    )  # fmt: skip


def _rented(found: Scaling, processes: int, samples: float) -> tuple[list[ScalingPrice], tuple[str, ...]]:
    """Return the sizes on which an epoch is cheapest, and who says their prices."""
    from distdl_jupyter.azure import catalogue
    from distdl_jupyter.azure import prices as retail

    rows: list[tuple[ScalingPrice, str]] = []
    for size in catalogue():
        gpus = size.whole_gpus
        if size.retired or not size.nvidia or size.gpu_count < 1 or processes % gpus:
            continue
        price = retail.cached(size.size)
        forecast = on_size(found, processes, size) if price else None
        if price is None or forecast is None:
            continue
        link, one = forecast
        nodes = processes // gpus
        seconds, per_hour = samples / one.rate, nodes * price.per_hour
        each = per_hour * samples / 3600
        rows.append((ScalingPrice(
            size=size.name, devices=f"{nodes} {TIMES} {gpus} {size.gpu} = {processes}",
            network="Ethernet" if size.ethernet_gbps else "InfiniBand", speed=link.text if nodes > 1 else "",
            infiniband=size.ethernet_gbps is None, efficiency=100 * one.efficiency,
            efficiency_error=spread(one), seconds=seconds, per_hour=per_hour, cost=each / one.rate,
            low=each / one.high, high=each / max(one.low, one.rate / 10), currency=price.currency, lowest=False,
        ), price.source))  # fmt: skip
    rows = sorted(rows, key=lambda row: row[0].cost)[:_MOST]
    if len(rows) > 1:
        rows[0] = replace(rows[0][0], lowest=True), rows[0][1]
    return [row for row, _ in rows], tuple(dict.fromkeys(source for _, source in rows))


def spread(one: Forecast) -> float:
    """Return the error of a forecast's efficiency in points of a percent."""
    return 100 * one.efficiency * one.error / one.rate if one.rate else 0.0


def on_size(found: Scaling, processes: int, size: VmSize) -> tuple[Link, Forecast] | None:
    """Return the link of a size and a forecast for its nodes; None where one of them cannot be told.

    Its nodes are full; where the processes do not fill them, each node has one.
    """
    from distdl_jupyter.azure.vm_sizes import link_of

    nodes = processes // size.whole_gpus if processes % size.whole_gpus == 0 else processes
    try:
        link = link_of(size.name)
        return link, found.forecast(processes, nodes=nodes, link=link)
    except DistDLError:
        return None


def size_to_rehearse(facts: Facts, known: Prices, processes: int) -> VmSize | None:
    """Return the size whose network is of interest: that of the job, else the cheapest.

    Without either it is the size with several GPUs whose network is the slowest, of those that so many processes fill
    with two nodes or more.
    """
    from distdl_jupyter.azure import catalogue, find

    name = facts.vm_size or next((row.size for row in known.rows if row.speed), "")
    if name:
        try:
            return find(name)
        except DistDLError:
            return None
    several = [
        one
        for one in catalogue()
        if not one.retired
        and one.nvidia
        and one.ethernet_gbps
        and one.whole_gpus > 1
        and processes % one.whole_gpus == 0
        and processes > one.whole_gpus
    ]
    return min(several, key=lambda one: (one.ethernet_gbps or 0.0, -one.whole_gpus), default=None)

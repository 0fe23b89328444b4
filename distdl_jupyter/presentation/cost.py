"""What a job's nodes cost, as everyone shows it: only where a price is known, always with who says so.

Pure. The sum is nodes x hours x price from the moment when the nodes were the job's own.
"""

from __future__ import annotations

from distdl_jupyter.core import words
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.presentation.schema import Cost


def cost(view: JobView, now: float) -> Cost | None:
    """Return what pages draw the running sum from, None without a price."""
    spent = view.cost(now)
    if spent is None or view.price_per_hour is None:
        return None
    return Cost(
        per_hour=view.price_per_hour * view.node_count,
        currency=view.currency,
        source=view.price_source,
        nodes=view.node_count,
        since=view.placed,
        spent=spent,
    )


def cost_words(view: JobView, now: float) -> str:
    """Return ``about 1.23 USD so far``, without the last words at the end, the rate before the start; else ""."""
    spent = view.cost(now)
    if spent is None or view.price_per_hour is None:
        return ""
    if view.placed is None:
        return "" if view.state.ended else rate(view.price_per_hour, view.currency, view.node_count)
    return f"about {words.money(spent, view.currency)}{'' if view.state.ended else ' so far'}"


def rate(per_hour: float, currency: str, nodes: int) -> str:
    """Return what ``nodes`` nodes at this price cost in an hour: ``about 7.35 USD/h for 2 nodes``."""
    return f"about {words.money(per_hour * nodes, currency)}/h for {words.plural(nodes, 'node')}"


def price(spec: JobSpec) -> str:
    """Return the price in the spec: ``3.67 USD for a node and hour (Retail Prices API, ...)``, "" without one."""
    if spec.price_per_hour is None:
        return ""
    return f"{words.money(spec.price_per_hour, spec.currency)} for a node and hour ({spec.price_source})"

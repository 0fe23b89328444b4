"""How clusters and their nodes are written as rows and sentences, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from distdl_jupyter.clusters.base import Check, NodeInfo
from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core.words import TIMES, plural

_SIGNS = {"up": "●", "down": "✗", "starting": "◔", "unknown": "?"}
_LEVELS = {"ok": "✓", "info": "i", "warning": "!", "error": "✗"}
_WORDS = {"up": "up", "down": "down", "starting": "starting", "unknown": "unknown"}


class Named(Protocol):
    """A cluster's name and kind."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def kind(self) -> str:
        """The kind of cluster."""


class Stands(Protocol):
    """A cluster as it is now."""

    @property
    def target(self) -> Named:
        """Which one."""

    @property
    def detail(self) -> str:
        """What machines these are."""

    @property
    def problem(self) -> str:
        """Why it cannot be used."""

    @property
    def remedy(self) -> str:
        """What changes that."""

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """Its machines."""

    @property
    def machines(self) -> Machines | None:
        """Its machines as a whole."""

    @property
    def billed(self) -> int:
        """How many nodes cost money now."""

    @property
    def cost_per_hour(self) -> float | None:
        """What they cost in an hour."""

    @property
    def currency(self) -> str:
        """The currency of that."""

    @property
    def up(self) -> int:
        """How many answer."""

    @property
    def gpus(self) -> int:
        """Their GPUs."""


def cluster_rows(standings: Iterable[Stands]) -> list[tuple[str, ...]]:
    """Return a table of clusters with its head: name, kind, nodes, GPUs, what is wrong; the cost where there is one."""
    found = list(standings)
    costs = any(one.billed for one in found)
    head = ("Name", "Kind", "Nodes", "GPUs", *(("Cost",) if costs else ()), "Problem")
    return [head, *(_cluster_row(one, costs=costs) for one in found)]


def _cluster_row(one: Stands, *, costs: bool) -> tuple[str, ...]:
    most = max(len(one.nodes), one.machines.max_nodes if one.machines else 0)
    nodes = f"{one.up} of {most} up" if most else ""
    gpus = str(one.gpus) if one.nodes else ""
    return one.target.name, one.target.kind, nodes, gpus, *((cost(one),) if costs else ()), trouble(one)


def cost(one: Stands) -> str:
    """Return what a cluster's nodes cost now: ``2 nodes cost money: 1.05 USD/h``; "" when none does."""
    if not one.billed:
        return ""
    verb = "costs" if one.billed == 1 else "cost"
    amount = per_hour(one.cost_per_hour, one.currency) or "price unknown"
    return f"{plural(one.billed, 'node')} {verb} money: {amount}"


def per_hour(amount: float | None, currency: str) -> str:
    """Return a price: ``1.05 USD/h``, "" when it is not known."""
    return "" if amount is None else f"{amount:,.2f} {currency}/h".replace("  ", " ")


def forecast(machines: Machines) -> str:
    """Return in sentences what machines that are to be made cost."""
    price = per_hour(machines.cost_per_hour, machines.currency)
    if not price:
        costs = "What a node costs is unknown."
    else:
        most = per_hour((machines.cost_per_hour or 0.0) * machines.max_nodes, machines.currency)
        each = f"A node costs {price} while it is up"
        several = f", {plural(machines.max_nodes, 'node')} {most}" if machines.max_nodes > 1 else ""
        costs = f"{each}{several} ({machines.price_source})."
    return f"{costs} {kept_up(machines.min_nodes)}".strip()


def kept_up(min_nodes: int) -> str:
    """Return the warning about nodes that stay up without a job, "" when none does."""
    if not min_nodes:
        return ""
    verb = "stays up and costs" if min_nodes == 1 else "stay up and cost"
    return f"{plural(min_nodes, 'node')} {verb} money all the time, also without a job."


def trouble(one: Stands) -> str:
    """Return what is wrong with a cluster in one line: itself, or its nodes that do not answer; "" when all is well."""
    if one.problem:
        return f"{one.problem} {one.remedy}".strip()
    if one.machines is not None and one.machines.problem:
        return one.machines.problem
    silent = [node for node in one.nodes if node.state in ("down", "unknown")]
    return "; ".join(f"{node.name}: {node.detail or 'does not answer'}" for node in silent)


def sentence(one: Stands) -> str:
    """Return a cluster in one line: ``lab: ssh, 2 of 3 nodes up, 4 GPUs; node-c: no answer``."""
    parts = [one.target.kind]
    if one.nodes:
        parts.append(f"{one.up} of {plural(len(one.nodes), 'node')} up")
    if one.gpus:
        parts.append(plural(one.gpus, "GPU"))
    if one.billed:
        parts.append(cost(one))
    if one.machines is not None and one.machines.state:
        parts.append(one.machines.state)
    return "; ".join(part for part in (f"{one.target.name}: {', '.join(parts)}", trouble(one)) if part)


def node_rows(nodes: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
    """Return a table of nodes with its head; what nobody knows stays empty."""
    return [("Node", "State", "GPUs", "Cores", "Load", "Ranks", "Python", "Detail"), *map(_node_row, nodes)]


def _node_row(node: NodeInfo) -> tuple[str, ...]:
    gpus = f"{node.gpus} {TIMES} {node.gpu_name or 'GPU'}" if node.gpus else ""
    return (
        node.name,
        f"{_SIGNS[node.state]} {_WORDS[node.state]}",
        gpus,
        str(node.cores) if node.cores else "",
        "" if node.load is None else f"{node.load:.1f}",
        "" if node.ranks is None else str(node.ranks),
        node.python,
        node.detail,
    )


def choice_rows(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """Return a table of values that an option may have, with its head."""
    return [("Value", "Name", "Detail"), *((one.value, one.label, one.detail) for one in choices)]


def check_rows(checks: Sequence[Check]) -> list[tuple[str, ...]]:
    """Return a table of what was looked at, with its head."""
    head = ("Node", "What", "", "Says", "Remedy")
    return [head, *((one.node, one.what, _LEVELS[one.level], one.says, one.remedy) for one in checks)]

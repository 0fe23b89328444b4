"""How clusters and their nodes are written as rows and sentences, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from distdl_jupyter.clusters.base import Check, NodeInfo
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
    def up(self) -> int:
        """How many answer."""

    @property
    def gpus(self) -> int:
        """Their GPUs."""


def cluster_rows(standings: Iterable[Stands]) -> list[tuple[str, ...]]:
    """Return a table of clusters with its head: name, kind, nodes, GPUs, what is wrong."""
    return [("Name", "Kind", "Nodes", "GPUs", "Problem"), *map(_cluster_row, standings)]


def _cluster_row(one: Stands) -> tuple[str, ...]:
    nodes = f"{one.up} of {len(one.nodes)} up" if one.nodes else ""
    gpus = str(one.gpus) if one.nodes else ""
    return one.target.name, one.target.kind, nodes, gpus, trouble(one)


def trouble(one: Stands) -> str:
    """Return what is wrong with a cluster in one line: itself, or its nodes that do not answer; "" when all is well."""
    if one.problem:
        return f"{one.problem} {one.remedy}".strip()
    silent = [node for node in one.nodes if node.state in ("down", "unknown")]
    return "; ".join(f"{node.name}: {node.detail or 'does not answer'}" for node in silent)


def sentence(one: Stands) -> str:
    """Return a cluster in one line: ``lab: ssh, 2 of 3 nodes up, 4 GPUs; node-c: no answer``."""
    parts = [one.target.kind]
    if one.nodes:
        parts.append(f"{one.up} of {plural(len(one.nodes), 'node')} up")
    if one.gpus:
        parts.append(plural(one.gpus, "GPU"))
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


def check_rows(checks: Sequence[Check]) -> list[tuple[str, ...]]:
    """Return a table of what was looked at, with its head."""
    head = ("Node", "What", "", "Says", "Remedy")
    return [head, *((one.node, one.what, _LEVELS[one.level], one.says, one.remedy) for one in checks)]

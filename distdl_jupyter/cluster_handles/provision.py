"""Machines made, scaled and unmade for a cluster, where its kind can do that; and what its options may be there.

What is wanted is declared once by the kind (``Cluster.Wanted``); forms, flags and Python fill it in alike.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from distdl_jupyter.cluster_handles import status
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import Cluster
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec
from distdl_jupyter.core.humanize import plural

#: Seconds between two looks at machines that are being made.
_STEP = 2.0


def choices(kind: str, option: str, options: Mapping[str, Any]) -> list[Choice]:
    """Return what an option of a kind, or of the machines that it makes, may be. Raises InvalidSpec, DistDLError."""
    cluster: Cluster = registry.get("clusters", kind)
    if option not in cluster.asks:
        raise InvalidSpec(
            f"Values of {option} cannot be listed for clusters of type {kind}.",
            code="choices-unavailable",
            field=option,
        )
    return cluster.choices(option, options)


def create(target: ClusterConfig, wanted: Mapping[str, Any]) -> None:
    """Ask for machines and return when that was accepted. Raises InvalidSpec, ClusterRefused, DistDLError."""
    cluster, options = status.plugin(target)
    cluster.create(options, _wanted(cluster, wanted))


def scale(target: ClusterConfig, node_count: int | None, min_nodes: int | None = None) -> ClusterConfig:
    """Change how many nodes there are, or may be, and how many stay up without a job; None leaves it as it is.

    Returns the cluster as it is kept from now on. Raises InvalidSpec, ClusterRefused, DistDLError.
    """
    cluster, options = status.plugin(target)
    if min_nodes is not None and node_count is not None and min_nodes > node_count:
        raise InvalidSpec(
            f"min_nodes is {min_nodes}, but the cluster can have at most {plural(node_count, 'node')}.",
            code="min-nodes-too-large",
            field="min_nodes",
            hint="Lower min_nodes, or raise the maximum number of nodes.",
        )
    later = options if node_count is None else cluster.scale(options, node_count)
    if min_nodes is not None:
        cluster.keep_up(later, min_nodes)
    return _kept(target, later)


def _kept(target: ClusterConfig, later: Any) -> ClusterConfig:
    """Keep the options that a scaled cluster has: only what differs from the default, as a user would write it."""
    if not target.named:
        return target
    usual = registry.check_options("clusters", target.kind, {})
    fields = {field.name: getattr(later, field.name) for field in dataclasses.fields(later)}
    changed = {name: value for name, value in fields.items() if value != getattr(usual, name) or name in target.options}
    return target if changed == dict(target.options) else cluster_configs.change(target.name, changed)


def delete(target: ClusterConfig, active: Sequence[object]) -> None:
    """Ask for the end of a cluster's machines, on which none of the jobs ``active`` runs. The name stays.

    Raises ClusterRefused, DistDLError.
    """
    if active:
        have = "has" if len(active) == 1 else "have"
        raise ClusterRefused(
            f"{plural(len(active), 'job')} of {target.name} {have} not ended.",
            code="machines-have-jobs",
            hint="Cancel them, or wait until they end.",
        )
    cluster, options = status.plugin(target)
    cluster.delete(options)


def settled(target: ClusterConfig, seconds: float) -> Machines | None:
    """Wait until nothing changes about a cluster's machines; return them. Raises ClusterRefused when that failed."""
    cluster, options = status.plugin(target)
    until = time.monotonic() + seconds
    while (found := cluster.machines(options)) is not None and found.state and time.monotonic() < until:
        time.sleep(_STEP)
    if found is not None and found.problem:
        raise ClusterRefused(found.problem, code="machines-not-changed")
    return found


def _wanted(cluster: Cluster, given: Mapping[str, Any]) -> Any:
    if not cluster.can_create:
        return None
    return registry.checked(cluster.Wanted, given, f"machines of a cluster of type {cluster.name}")

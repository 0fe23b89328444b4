"""The current state of clusters for pages: their nodes, and the jobs that run on these."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import NodeInfo
from distdl_jupyter.clusters.cluster_configs import ClusterConfig, ClusterStatus, StatusCache
from distdl_jupyter.core import humanize
from distdl_jupyter.jobs import job_queue
from distdl_jupyter.jobs.job_list import LIST_READ_SECONDS, JobIndex
from distdl_jupyter.jobs.job_queue import MachineUse
from distdl_jupyter.views.job_table import ListedJob
from distdl_jupyter.views.wire import from_fields


@dataclass(frozen=True, slots=True)
class ClusterNode(NodeInfo):
    """One machine of a cluster; ``jobs`` are the ids of the jobs that run on it."""

    state: Literal["idle", "busy", "down", "unknown", "starting"] = "idle"  # type: ignore[assignment]  # not "up"
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterRow(ClusterStatus):
    """A cluster with its jobs. ``problem`` is why it cannot be used now, or "". ``code`` identifies the problem."""

    nodes: tuple[ClusterNode, ...] = ()
    node_count: int = 0
    active_jobs: int = 0
    #: The resources of this machine that jobs use, and the queued jobs, or None for another cluster.
    in_use: MachineUse | None = None


async def read_clusters(
    run: Callable[..., Awaitable[Any]],
    job_index: JobIndex,
    cache: StatusCache,
    configs: Sequence[ClusterConfig] | None = None,
) -> tuple[ClusterRow, ...]:
    """Return the current state of clusters (default: all), or the last known state of a slow cluster.

    ``run`` runs a function in a thread.
    """
    jobs = await run(lambda: job_index.read_all(LIST_READ_SECONDS))
    configs = await run(cluster_configs.list_clusters) if configs is None else configs
    statuses = await asyncio.gather(*(cache.get_status(config) for config in configs))
    has_local = any(status.kind == "local" for status in statuses)
    in_use = await run(job_queue.get_machine_use) if has_local else None
    return tuple(_to_row(status, jobs, in_use if status.kind == "local" else None) for status in statuses)


def _to_row(cluster: ClusterStatus, jobs: Sequence[ListedJob], in_use: MachineUse | None) -> ClusterRow:
    nodes: tuple[ClusterNode, ...] = ()
    if cluster.nodes:
        candidates = [job for job in jobs if job.cluster == cluster.kind]
        is_local = cluster.kind == "local"  # its jobs may run on emulated nodes with other names
        nodes = tuple(
            _to_node(node, [job for job in candidates if node.name in job.hosts or (is_local and job.hosts)])
            for node in cluster.nodes
        )
    active_count = len(list_active_jobs(cluster.name, jobs))
    return from_fields(ClusterRow, cluster, nodes=nodes, node_count=len(nodes), active_jobs=active_count, in_use=in_use)


def _to_node(node: NodeInfo, jobs: Sequence[ListedJob]) -> ClusterNode:
    """Return a node with its activity as its detail: "running digits", "idle 41 min"."""
    running = [job.row for job in jobs if job.active]
    state = ("busy" if running else "idle") if node.state == "up" else node.state
    detail = node.detail
    if running and not detail:
        suffix = f" and {len(running) - 2} more" if len(running) > 2 else ""
        detail = f"running {humanize.listing([row.name for row in running[:2]])}{suffix}"
    elif state == "idle" and not detail and (end_times := [job.row.ended for job in jobs if job.row.ended is not None]):
        detail = f"idle {humanize.ago(max(1.0, time.time() - max(end_times))).removesuffix(' ago')}"
    return from_fields(ClusterNode, node, state=state, detail=detail, jobs=tuple(row.id for row in running))


def list_active_jobs(cluster: str, jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """Return the jobs of a cluster that have not ended."""
    return [job for job in jobs if job.active and job.row.compute_target == cluster]

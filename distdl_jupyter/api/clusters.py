"""Clusters over HTTP: the built-in ones and those that a user named, with the present state of their nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.api.call import Context, delete, get, post
from distdl_jupyter.clusters import cluster_configs, handle, status
from distdl_jupyter.clusters.base import Check, Choice, NodeInfo
from distdl_jupyter.clusters.status import ClusterStatus
from distdl_jupyter.clusters.tables import has_errors, merge_hosts
from distdl_jupyter.core import humanize
from distdl_jupyter.jobs import job_queue
from distdl_jupyter.jobs.job_queue import InUse
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    from distdl_jupyter.clusters.cluster_configs import ClusterConfig
    from distdl_jupyter.views.job_table import Listed


@dataclass(frozen=True, slots=True)
class Node(NodeInfo):
    """One machine of a cluster; ``jobs`` are the ids of the jobs that run on it."""

    state: Literal["idle", "busy", "down", "unknown", "starting"] = "idle"  # type: ignore[assignment]  # for pages
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster(ClusterStatus):
    """A cluster with its jobs; ``problem`` says why it cannot be used now ("" when it can), ``code`` names it."""

    nodes: tuple[Node, ...] = ()
    node_count: int = 0
    active_jobs: int = 0
    #: What jobs hold of this machine and how many are queued for it; None for other clusters.
    in_use: InUse | None = None


async def shown(context: Context, selected: Sequence[ClusterConfig] | None = None) -> tuple[Cluster, ...]:
    """Return the present state of clusters (default: all); of a slow cluster, its last known state."""
    jobs = await context.run(context.listing.known)
    configs = await context.run(cluster_configs.every) if selected is None else selected
    statuses = await asyncio.gather(*(context.clusters.now(config) for config in configs))
    has_local = any(entry.kind == "local" for entry in statuses)
    use = await context.run(job_queue.in_use) if has_local else None
    return tuple(_cluster(entry, jobs, use if entry.kind == "local" else None) for entry in statuses)


def _cluster(known: ClusterStatus, jobs: Sequence[Listed], use: InUse | None) -> Cluster:
    nodes = _nodes(known, jobs)
    active = len(_active(known, jobs))
    return from_fields(Cluster, known, nodes=nodes, node_count=len(nodes), active_jobs=active, in_use=use)


def _nodes(known: ClusterStatus, jobs: Sequence[Listed]) -> tuple[Node, ...]:
    if not known.nodes:
        return ()
    plugin, _ = status.plugin(known)
    return tuple(_node(plugin, node, known, jobs) for node in known.nodes)


def _active(target: ClusterConfig, jobs: Sequence[Listed]) -> list[Listed]:
    return [job for job in jobs if job.active and job.row.compute_target == target.name]


def _node(plugin: Any, node: NodeInfo, target: ClusterConfig, jobs: Sequence[Listed]) -> Node:
    here = [job for job in jobs if job.cluster == target.kind and any(plugin.holds(node, host) for host in job.hosts)]
    running = [job for job in here if job.active]
    state = ("busy" if running else "idle") if node.state == "up" else node.state
    detail = node.detail or _doing(running, here, state)
    return from_fields(Node, node, state=state, detail=detail, jobs=tuple(job.row.id for job in running))


def _doing(running: list[Listed], here: list[Listed], state: str) -> str:
    """Return what a node does: "running digits", "idle 41 min"."""
    if running:
        return f"running {humanize.listing([job.row.name for job in running[:2]])}" + (
            f" and {len(running) - 2} more" if len(running) > 2 else ""
        )
    ends = [job.row.ended for job in here if job.row.ended is not None]
    if state != "idle" or not ends:
        return ""
    return f"idle {humanize.ago(max(1.0, time.time() - max(ends))).removesuffix(' ago')}"


@dataclass(frozen=True, slots=True)
class ClusterList:
    """All clusters."""

    clusters: tuple[Cluster, ...]


@get("/clusters")
async def clusters(context: Context) -> ClusterList:
    """List the clusters with their nodes."""
    return ClusterList(await shown(context))


@post("/clusters", status=201, refuses=(409, 424))
async def add(context: Context, *, name: str, kind: str, options: dict[str, Any] | None = None) -> Cluster:
    """Name a cluster with its options."""
    target = await context.run(lambda: cluster_configs.add(name, kind, options or {}))
    return (await shown(context, [target]))[0]


@get("/clusters/{name}", refuses=(404,))
async def show(context: Context, name: str) -> Cluster:
    """Show one cluster with its nodes."""
    return (await shown(context, [await context.run(lambda: cluster_configs.get(name))]))[0]


@delete("/clusters/{name}", status=204, refuses=(404, 409))
def remove(context: Context, name: str) -> None:
    """Remove the name of a cluster on which no job is running."""
    cluster_configs.remove(name, _active(cluster_configs.get(name), context.listing.all()))


@dataclass(frozen=True, slots=True)
class ClusterChecks:
    """The results; ``failed`` if one of them prevents jobs."""

    checks: tuple[Check, ...]
    failed: bool


@post("/clusters/{name}/check", action="execute", refuses=(404,))
async def check(context: Context, name: str, *, distributed_backend: str = "") -> ClusterChecks:
    """Check every node for problems that would prevent a job; this can take 30 s.

    With a backend, its requirements are checked too.
    """
    target = await context.run(lambda: cluster_configs.get(name))
    needs = await context.run(lambda: status.needs(distributed_backend)) if distributed_backend else None
    checks = await context.clusters.checked(target, needs)
    return ClusterChecks(tuple(merge_hosts(checks)), has_errors(checks))


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """The allowed values."""

    choices: tuple[Choice, ...]


@post("/choices", action="execute", refuses=(409, 424))
async def choices(*, kind: str, option: str, options: dict[str, Any] | None = None) -> ChoiceList:
    """List the known values of one option of a kind of cluster, with its other options so far; can take seconds."""
    # In a thread of its own, so that a silent cloud keeps no other request waiting.
    return ChoiceList(tuple(await asyncio.to_thread(handle.choices, kind, option, options or {})))

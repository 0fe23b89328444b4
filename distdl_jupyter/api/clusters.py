"""Clusters over HTTP: the built-in ones and those that a user named, with their nodes now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from distdl_jupyter import cluster_handles
from distdl_jupyter.api.call import Context, delete, get, patch, post
from distdl_jupyter.cluster_handles import provision, status
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core import humanize
from distdl_jupyter.jobs import job_queue
from distdl_jupyter.jobs.job_queue import InUse
from distdl_jupyter.views.clusters import has_errors, merge_hosts

if TYPE_CHECKING:
    from distdl_jupyter.cluster_handles import ClusterStatus
    from distdl_jupyter.clusters.base import NodeInfo
    from distdl_jupyter.clusters.cluster_configs import ClusterConfig
    from distdl_jupyter.views.ended_cache import Listed

NodeState = Literal["idle", "busy", "down", "unknown", "starting"]


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster; ``jobs`` are the ids of the jobs that run on it.

    ``cores`` is 0 and ``python`` "" where they are not known; ``load`` is the load average of a minute and ``ranks``
    the number of ranks of this user there, None when they are not known.
    """

    name: str
    state: NodeState
    detail: str
    gpus: int
    gpu_name: str
    python: str
    cores: int
    load: float | None
    ranks: int | None
    jobs: tuple[str, ...]
    #: It costs money now.
    billed: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster; ``problem`` says why it cannot be used now ("" when it can), ``code`` names it."""

    name: str
    kind: str
    title: str
    detail: str
    problem: str
    remedy: str
    code: str
    nodes: tuple[Node, ...]
    active_jobs: int
    #: A user named it and can remove it.
    named: bool
    #: Its nodes are other machines, with packages of their own.
    far: bool
    #: False until it has answered once.
    looked: bool
    can_scale: bool
    node_count: int
    max_node_count: int
    options: dict[str, Any]
    #: Its machines are created and deleted from here; None for machines of others, and until it is known.
    can_create: bool
    machines: Machines | None
    #: The number of nodes that cost money now, and what all of them cost in an hour, None when that is not known.
    billed: int
    cost_per_hour: float | None
    currency: str
    #: What jobs hold of this machine and how many wait for it; None for other machines.
    in_use: InUse | None


async def shown(context: Context, wanted: Sequence[ClusterConfig] | None = None) -> tuple[Cluster, ...]:
    """Return clusters as they are now (all by default); a cluster that answers slowly is shown as it was last known."""
    jobs = await context.run(context.listing.known)
    configs = await context.run(cluster_handles.every) if wanted is None else wanted
    statuses = await asyncio.gather(*(context.clusters.now(config) for config in configs))
    has_local = any(entry.target.kind == "local" for entry in statuses)
    use = await context.run(job_queue.in_use) if has_local else None
    return tuple(_cluster(entry, jobs, use if entry.target.kind == "local" else None) for entry in statuses)


def _cluster(known: ClusterStatus, jobs: Sequence[Listed], use: InUse | None) -> Cluster:
    target = known.target
    return Cluster(
        name=target.name,
        kind=target.kind,
        title=known.title or target.kind,
        detail=known.detail,
        problem=known.problem,
        remedy=known.remedy,
        code=known.code,
        nodes=_nodes(known, jobs),
        active_jobs=len(_active(target, jobs)),
        named=target.named,
        far=known.far,
        looked=known.looked,
        can_scale=known.can_scale,
        node_count=len(known.nodes),
        max_node_count=known.max_node_count,
        options=dict(target.options),
        can_create=known.can_create,
        machines=known.machines,
        billed=known.billed,
        cost_per_hour=known.cost_per_hour,
        currency=known.currency,
        in_use=use,
    )


def _nodes(known: ClusterStatus, jobs: Sequence[Listed]) -> tuple[Node, ...]:
    if not known.nodes:
        return ()
    plugin, _ = status.plugin(known.target)
    return tuple(_node(plugin, node, known.target, jobs) for node in known.nodes)


def _active(target: ClusterConfig, jobs: Sequence[Listed]) -> list[Listed]:
    return [job for job in jobs if job.active and job.row.compute_target == target.name]


def _node(plugin: Any, node: NodeInfo, target: ClusterConfig, jobs: Sequence[Listed]) -> Node:
    here = [job for job in jobs if job.cluster == target.kind and any(plugin.holds(node, host) for host in job.hosts)]
    running = [job for job in here if job.active]
    state: NodeState = ("busy" if running else "idle") if node.state == "up" else node.state
    return Node(
        name=node.name,
        state=state,
        detail=node.detail or _doing(running, here, state),
        gpus=node.gpus,
        gpu_name=node.gpu_name,
        python=node.python,
        cores=node.cores,
        load=node.load,
        ranks=node.ranks,
        jobs=tuple(job.row.id for job in running),
        billed=node.billed,
    )


def _doing(running: list[Listed], here: list[Listed], state: NodeState) -> str:
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
    return (await shown(context, [await context.run(lambda: cluster_handles.find(name))]))[0]


@patch("/clusters/{name}", refuses=(404, 409, 424))
async def scale(
    context: Context, name: str, *, node_count: Annotated[int, Meta(ge=0, le=10_000, description="nodes")]
) -> Cluster:
    """Change the number of nodes of a cluster."""
    target = await context.run(lambda: provision.scale(cluster_handles.find(name), node_count))
    return (await shown(context, [target]))[0]


@delete("/clusters/{name}", status=204, refuses=(404, 409))
def remove(context: Context, name: str) -> None:
    """Remove the name of a cluster on which no job is running."""
    cluster_handles.remove(name, _active(cluster_handles.find(name), context.listing.all()))


@dataclass(frozen=True, slots=True)
class ClusterChecks:
    """The results; ``failed`` when one of them keeps jobs from running there."""

    checks: tuple[Check, ...]
    failed: bool


@post("/clusters/{name}/check", action="execute", refuses=(404,))
async def check(context: Context, name: str, *, distributed_backend: str = "") -> ClusterChecks:
    """Check every node for problems that would keep a job from running; this can take 30 s.

    With a backend, also for what that needs on every node.
    """
    target = await context.run(lambda: cluster_handles.find(name))
    needs = await context.run(lambda: status.needs(distributed_backend)) if distributed_backend else None
    checks = await context.clusters.checked(target, needs)
    return ClusterChecks(tuple(merge_hosts(checks)), has_errors(checks))


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """All values that are offered."""

    choices: tuple[Choice, ...]


@post("/choices", action="execute", refuses=(409, 424))
async def choices(*, kind: str, option: str, options: dict[str, Any] | None = None) -> ChoiceList:
    """List the known values of one option of a kind of cluster, with its other options so far; can take seconds."""
    # In a thread of its own, so that a silent cloud keeps no other request waiting.
    return ChoiceList(tuple(await asyncio.to_thread(provision.choices, kind, option, options or {})))

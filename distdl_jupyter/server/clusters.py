"""Clusters over HTTP: those that are there by themselves, those that a user named, and their nodes now."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter import cluster_handles
from distdl_jupyter.cluster_handles import provision, status
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import humanize
from distdl_jupyter.jobs import job_queue
from distdl_jupyter.server.base import Handler, answers, executes
from distdl_jupyter.server.schema import (
    CheckCluster,
    Cluster,
    ClusterChecks,
    ClusterList,
    NewCluster,
    Node,
    NodeState,
    ScaleCluster,
)
from distdl_jupyter.views.clusters import has_errors, merge_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.cluster_handles import ClusterStatus
    from distdl_jupyter.clusters.base import NodeInfo
    from distdl_jupyter.clusters.cluster_configs import ClusterConfig
    from distdl_jupyter.jobs.job_queue import InUse
    from distdl_jupyter.server.app import DistDLApp
    from distdl_jupyter.views.ended_cache import Listed


async def shown(app: DistDLApp, wanted: Sequence[ClusterConfig] | None = None) -> tuple[Cluster, ...]:
    """Return clusters as they are now (all by default); one that takes its time is shown as it was known last."""
    loop = asyncio.get_running_loop()
    jobs = await loop.run_in_executor(app.pool, app.listing.known)
    found = await loop.run_in_executor(app.pool, cluster_handles.every) if wanted is None else wanted
    stands = await asyncio.gather(*(app.looks.now(target) for target in found))
    here = any(one.target.kind == "local" for one in stands)
    use = await loop.run_in_executor(app.pool, job_queue.in_use) if here else None
    return tuple(_cluster(one, jobs, use if one.target.kind == "local" else None) for one in stands)


def _cluster(one: ClusterStatus, jobs: Sequence[Listed], use: InUse | None) -> Cluster:
    target = one.target
    return Cluster(
        name=target.name,
        kind=target.kind,
        title=one.title or target.kind,
        detail=one.detail,
        problem=one.problem,
        remedy=one.remedy,
        code=one.code,
        nodes=_nodes(one, jobs),
        active_jobs=len(_active(target, jobs)),
        named=target.named,
        far=one.far,
        looked=one.looked,
        can_scale=one.can_scale,
        node_count=len(one.nodes),
        max_node_count=one.max_node_count,
        options=dict(target.options),
        can_create=one.can_create,
        machines=one.machines,
        billed=one.billed,
        cost_per_hour=one.cost_per_hour,
        currency=one.currency,
        in_use=use,
    )


def _nodes(one: ClusterStatus, jobs: Sequence[Listed]) -> tuple[Node, ...]:
    if not one.nodes:
        return ()
    plugin, _ = status.plugin(one.target)
    return tuple(_node(plugin, node, one.target, jobs) for node in one.nodes)


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


class Clusters(Handler):
    """All clusters."""

    @answers(ClusterList)
    async def get(self) -> ClusterList:
        """List the clusters with their nodes."""
        return ClusterList(await shown(self.app))

    @answers(Cluster, status=201, body=NewCluster, refuses=(409, 424))
    async def post(self, body: NewCluster) -> Cluster:
        """Name a cluster with its options."""
        target = await self.run_in_thread(cluster_configs.add, body.name, body.kind, body.options)
        return (await shown(self.app, [target]))[0]


class ClusterByName(Handler):
    """One cluster."""

    @answers(Cluster, refuses=(404,))
    async def get(self, name: str) -> Cluster:
        """Show one cluster with its nodes."""
        return (await shown(self.app, [await self.run_in_thread(cluster_handles.find, name)]))[0]

    @answers(Cluster, body=ScaleCluster, refuses=(404, 409, 424))
    async def patch(self, name: str, body: ScaleCluster) -> Cluster:
        """Change the number of nodes of a cluster."""
        target = await self.run_in_thread(
            provision.scale, await self.run_in_thread(cluster_handles.find, name), body.node_count
        )
        return (await shown(self.app, [target]))[0]

    @answers(status=204, refuses=(404, 409))
    async def delete(self, name: str) -> None:
        """Remove the name of a cluster on which no job is running."""
        await self.run_in_thread(_removed, name, self.app)


def _removed(name: str, app: DistDLApp) -> None:
    cluster_handles.remove(name, _active(cluster_handles.find(name), app.listing.all()))


class CheckOfCluster(Handler):
    """A look at a cluster before a job goes there."""

    @answers(ClusterChecks, body=CheckCluster, refuses=(404,))
    @executes
    async def post(self, name: str, body: CheckCluster) -> ClusterChecks:
        """Check every node for problems that would keep a job from running; this can take 30 s."""
        target = await self.run_in_thread(cluster_handles.find, name)
        needs = await self.run_in_thread(status.needs, body.distributed_backend) if body.distributed_backend else None
        found = await self.app.looks.checked(target, needs)
        return ClusterChecks(tuple(merge_hosts(found)), has_errors(found))

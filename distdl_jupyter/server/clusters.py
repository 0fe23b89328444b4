"""Clusters over HTTP: those that are there by themselves, those that a user named, and their nodes now."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter import registry, targets
from distdl_jupyter.core import words
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, DistDLError, PluginUnavailable
from distdl_jupyter.core.words import plural
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.schema import Cluster, ClusterList, NewCluster, Node, NodeState, ScaleCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.clusters.base import NodeInfo
    from distdl_jupyter.server.app import DistDLApp
    from distdl_jupyter.server.listing import Listed
    from distdl_jupyter.targets import Target


def places() -> list[Target]:
    """Return all clusters to show: kinds that are a place without options, then named ones. Raises DistDLError."""
    kinds = [targets.Target(name, name) for name in registry.names("clusters") if _complete(name)]
    return [*kinds, *targets.named()]


def _complete(kind: str) -> bool:
    try:
        return bool(registry.get("clusters", kind).complete)
    except PluginUnavailable:
        return True  # shown with what is wrong with it


def place(name: str) -> Target:
    """Return one of ``places``. Raises ClusterNotFound."""
    for target in places():
        if target.name == name:
            return target
    raise ClusterNotFound(f"No cluster is named {name!r}.")


async def shown(app: DistDLApp, wanted: Sequence[Target] | None = None) -> tuple[Cluster, ...]:
    """Return clusters as they are now (all by default), each asked in its own thread, a silent one not waited for."""
    loop = asyncio.get_running_loop()
    jobs = await loop.run_in_executor(app.pool, app.listing.known)
    found = await loop.run_in_executor(app.pool, places) if wanted is None else wanted
    return tuple(await asyncio.gather(*(_in_time(app, target, jobs) for target in found)))


async def _in_time(app: DistDLApp, target: Target, jobs: list[Listed]) -> Cluster:
    asked = asyncio.get_running_loop().run_in_executor(app.pool, told, target, jobs)
    try:
        return await asyncio.wait_for(asked, app.cluster_seconds)
    except TimeoutError:
        return _without_nodes(target, jobs, f"It has said nothing for {app.cluster_seconds:g} s.", "")


def told(target: Target, jobs: Sequence[Listed]) -> Cluster:
    """Return one cluster as it is now; what cannot be asked is told as its problem."""
    try:
        return _told(target, jobs)
    except DistDLError as error:
        return _without_nodes(target, jobs, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - a plug-in of somebody else must not hide the other clusters
        return _without_nodes(target, jobs, f"Its plug-in failed: {type(error).__name__}: {error}", "")


def _told(target: Target, jobs: Sequence[Listed]) -> Cluster:
    plugin = registry.get("clusters", target.kind)
    options = registry.check_options("clusters", target.kind, dict(target.options))
    problem = plugin.unavailable(options)
    nodes = [] if problem else plugin.nodes(options)
    return dataclasses.replace(
        _without_nodes(target, jobs, problem, ""),
        title=plugin.title or plugin.name,
        detail="" if problem else plugin.detail(options),
        nodes=tuple(_node(plugin, node, target, jobs) for node in nodes),
        can_scale=plugin.can_scale,
        node_count=len(nodes),
        max_node_count=plugin.max_node_count(options, len(nodes)),
    )


def _without_nodes(target: Target, jobs: Sequence[Listed], problem: str, remedy: str) -> Cluster:
    return Cluster(
        name=target.name, kind=target.kind, title=target.kind, detail="", problem=problem, remedy=remedy, nodes=(),
        active_jobs=len(_active(target, jobs)), named=target.named, can_scale=False, node_count=0, max_node_count=0,
        options=dict(target.options),
    )  # fmt: skip


def _active(target: Target, jobs: Sequence[Listed]) -> list[Listed]:
    return [job for job in jobs if job.active and job.row.compute_target == target.name]


def _node(plugin: Any, node: NodeInfo, target: Target, jobs: Sequence[Listed]) -> Node:
    here = [job for job in jobs if job.cluster == target.kind and any(plugin.holds(node, host) for host in job.hosts)]
    running = [job for job in here if job.active]
    state: NodeState = ("busy" if running else "idle") if node.state == "up" else node.state
    return Node(
        name=node.name,
        state=state,
        detail=node.detail or _doing(running, here, state),
        gpus=node.gpus,
        gpu_name=node.gpu_name,
        jobs=tuple(job.row.id for job in running),
    )


def _doing(running: list[Listed], here: list[Listed], state: NodeState) -> str:
    """Return what a node does: "running digits", "idle 41 min"."""
    if running:
        return f"running {words.listing([job.row.name for job in running[:2]])}" + (
            f" and {len(running) - 2} more" if len(running) > 2 else ""
        )
    ends = [job.row.ended for job in here if job.row.ended is not None]
    if state != "idle" or not ends:
        return ""
    return f"idle {words.ago(max(1.0, time.time() - max(ends))).removesuffix(' ago')}"


class Clusters(Handler):
    """All clusters."""

    @answers(ClusterList)
    async def get(self) -> ClusterList:
        """List the clusters with their nodes."""
        return ClusterList(await shown(self.app))

    @answers(Cluster, status=201, body=NewCluster, refuses=(409, 424))
    async def post(self, body: NewCluster) -> Cluster:
        """Give a kind of cluster with its options a name."""
        target = await self.apart(targets.add, body.name, body.kind, body.options)
        return (await shown(self.app, [target]))[0]


class ClusterByName(Handler):
    """One cluster."""

    @answers(Cluster, refuses=(404,))
    async def get(self, name: str) -> Cluster:
        """Show one cluster with its nodes."""
        return (await shown(self.app, [await self.apart(place, name)]))[0]

    @answers(Cluster, body=ScaleCluster, refuses=(404, 409, 424))
    async def patch(self, name: str, body: ScaleCluster) -> Cluster:
        """Change how many nodes a cluster has."""
        target = await self.apart(_scaled, name, body.node_count)
        return (await shown(self.app, [target]))[0]

    @answers(status=204, refuses=(404, 409))
    async def delete(self, name: str) -> None:
        """Forget a named cluster on which no job runs."""
        await self.apart(_removed, name, self.app)


def _scaled(name: str, node_count: int) -> Target:
    target = place(name)
    plugin = registry.get("clusters", target.kind)
    options = registry.check_options("clusters", target.kind, dict(target.options))
    later = plugin.scale(options, node_count)
    if not target.named:
        return target
    # Only what differs from the default is kept, as a user would write it.
    fields = {field.name: getattr(later, field.name) for field in dataclasses.fields(later)}
    usual = registry.check_options("clusters", target.kind, {})
    changed = {name: value for name, value in fields.items() if value != getattr(usual, name) or name in target.options}
    return targets.change(target.name, changed)


def _removed(name: str, app: DistDLApp) -> None:
    target = place(name)
    if not target.named:
        raise ClusterRefused(f"{name} is there by itself and cannot be removed.")
    active = _active(target, app.listing.all())
    if active:
        raise ClusterRefused(f"{plural(len(active), 'job')} of {name} {'has' if len(active) == 1 else 'have'} not "
                             "ended.", hint="Cancel them first, or wait for their end.")  # fmt: skip
    targets.remove(name)

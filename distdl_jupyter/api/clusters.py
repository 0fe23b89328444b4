"""HTTP API for clusters: the built-in ones and those that the user added."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.api.call import Context, delete, get, post
from distdl_jupyter.clusters import cluster_configs, handle, status
from distdl_jupyter.clusters.base import NodeCheck, OptionValue
from distdl_jupyter.clusters.tables import has_errors, merge_hosts
from distdl_jupyter.live.clusters import Cluster, active_jobs, present

if TYPE_CHECKING:
    from distdl_jupyter.clusters.cluster_configs import ClusterConfig


@dataclass(frozen=True, slots=True)
class ClusterList:
    """All clusters."""

    clusters: tuple[Cluster, ...]


@get("/clusters")
async def clusters(context: Context) -> ClusterList:
    """List the clusters with their nodes."""
    return ClusterList(await present(context.run, context.listing, context.clusters))


@post("/clusters", status=201, refuses=(409, 424))
async def add(context: Context, *, name: str, kind: str, options: dict[str, Any] | None = None) -> Cluster:
    """Name a cluster with its options."""
    return await _cluster(context, await context.run(cluster_configs.add, name, kind, options or {}))


@get("/clusters/{name}", refuses=(404,))
async def show(context: Context, name: str) -> Cluster:
    """Show one cluster with its nodes."""
    return await _cluster(context, await context.run(cluster_configs.get, name))


async def _cluster(context: Context, target: ClusterConfig) -> Cluster:
    (cluster,) = await present(context.run, context.listing, context.clusters, [target])
    return cluster


@delete("/clusters/{name}", status=204, refuses=(404, 409))
def remove(context: Context, name: str) -> None:
    """Remove the name of a cluster on which no job is running."""
    cluster_configs.remove(name, active_jobs(name, context.listing.all()))


@dataclass(frozen=True, slots=True)
class ClusterChecks:
    """The results; ``failed`` if one of them prevents jobs."""

    checks: tuple[NodeCheck, ...]
    failed: bool


@post("/clusters/{name}/check", action="execute", refuses=(404,))
async def check(context: Context, name: str, *, distributed_backend: str = "") -> ClusterChecks:
    """Check every node for problems that would prevent a job; this can take 30 s.

    With a backend, its requirements are checked too.
    """
    target = await context.run(cluster_configs.get, name)
    needs = await context.run(status.needs, distributed_backend) if distributed_backend else None
    checks = await context.clusters.checked(target, needs)
    return ClusterChecks(tuple(merge_hosts(checks)), has_errors(checks))


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """The allowed values."""

    choices: tuple[OptionValue, ...]


@post("/choices", action="execute", refuses=(409, 424))
async def choices(*, kind: str, option: str, options: dict[str, Any] | None = None) -> ChoiceList:
    """List the known values of one option of a cluster type, given its other options; this can take seconds."""
    # In a separate thread, so that a slow cloud does not delay other requests.
    return ChoiceList(tuple(await asyncio.to_thread(handle.choices, kind, option, options or {})))

"""Which clusters there are: kinds that are a place by themselves, and those that a user has named."""

from __future__ import annotations

from collections.abc import Sequence

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, PluginUnavailable
from distdl_jupyter.core.humanize import plural


def every() -> list[ClusterConfig]:
    """Return all clusters to show, named ones last. Raises DistDLError when the file of the named ones is broken."""
    return [*kinds(), *cluster_configs.named()]


def kinds() -> list[ClusterConfig]:
    """Return the kinds that are a place without options."""
    return [found for name in registry.names("clusters") if (found := _by_itself(name)) is not None]


def find(name: str) -> ClusterConfig:
    """Return one of ``every``. Raises ClusterNotFound that says what there is, or what a mere kind still needs."""
    known = every()
    for target in known:
        if target.name == name:
            return target
    if name in registry.names("clusters"):
        raise ClusterNotFound(
            f"{name} is a type of cluster, not the name of a cluster.",
            code="kind-is-not-a-cluster",
            hint=f'Add one with add_cluster("lab", "{name}", ...) or distdl clusters add lab {name}.',
        )
    names = [target.name for target in known]
    raise ClusterNotFound(
        f"Unknown cluster {name!r}.",
        code="cluster-not-in-list",
        hint=unknown(name, names, "cluster").partition(". ")[2],
    )


def remove(name: str, active: Sequence[object]) -> None:
    """Forget a named cluster on which none of the jobs ``active`` runs. Raises ClusterNotFound, ClusterRefused."""
    if not find(name).named:
        raise ClusterRefused(f"{name} is built in and cannot be removed.", code="cluster-built-in")
    if active:
        have, them, their = ("has", "it", "its") if len(active) == 1 else ("have", "them", "their")
        raise ClusterRefused(
            f"{plural(len(active), 'job')} of {name} {have} not ended.",
            code="cluster-has-jobs",
            hint=f"Cancel {them}, or wait for {their} end.",
        )
    cluster_configs.remove(name)


def _by_itself(kind: str) -> ClusterConfig | None:
    try:
        options = registry.get("clusters", kind).by_itself()
    except PluginUnavailable:
        options = {}  # shown with what is wrong with it
    return None if options is None else ClusterConfig(kind, kind, options)

"""The cluster that a form has chosen, as the page shows it: its nodes now, and what would keep the job from running.

Only of clusters whose nodes are other machines: of this machine the form's checks say everything.
"""

from __future__ import annotations

from distdl_jupyter.cluster_handles import status
from distdl_jupyter.cluster_handles.cached_status import CachedStatus, cached_status
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form.schema import ClusterNow
from distdl_jupyter.views.clusters import merge_hosts

_FOUND = {"error": 0, "warning": 1}


def look(compute_target: str, backend: str, timeout: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return what is known of a cluster, None when it is not of other machines; it looks on by itself."""
    try:
        target = cluster_configs.find(compute_target)
        if not registry.get("clusters", target.kind).far:
            return None
        needs = status.needs(backend)
    except DistDLError:
        return None
    return cached_status(target, needs, timeout=timeout, fresh=fresh)


def shown(found: CachedStatus | None) -> ClusterNow | None:
    """Return what a page is told of it; of the checks only what needs a remedy."""
    if found is None:
        return None
    known = found.status
    wrong = [one for one in merge_hosts(found.checks or ()) if one.level in _FOUND]
    return ClusterNow(
        looking=found.looking,
        known=known is not None,
        problem=known.problem if known else "",
        remedy=known.remedy if known else "",
        code=known.code if known else "",
        nodes=known.nodes if known else (),
        checked=found.checks is not None,
        checks=tuple(sorted(wrong, key=lambda one: _FOUND[one.level])),
    )


def gpus_per_node(found: CachedStatus | None) -> int:
    """Return the GPUs that every node has, as far as it is known."""
    nodes = [node for node in found.status.nodes if node.state == "up"] if found and found.status else []
    return min((node.gpus for node in nodes), default=0)

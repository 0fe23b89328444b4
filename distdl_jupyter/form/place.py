"""The cluster that a form has chosen, as the page shows it: its nodes now, and what would keep the job from running.

Only of clusters whose nodes are other machines: of this machine the form's checks say everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from distdl_jupyter import cluster_configs, registry
from distdl_jupyter.cluster_handles import status
from distdl_jupyter.cluster_handles.cached_status import CachedStatus, cached_status
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.views.clusters import merge_hosts

_FOUND = {"error": 0, "warning": 1}


def is_far(name: str) -> bool:
    """Say whether a cluster's nodes are other machines; what cannot be loaded has none."""
    try:
        return bool(registry.get("clusters", cluster_configs.find(name).kind).far)
    except DistDLError:
        return False


def look(options: Mapping[str, Any], patience: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return what is known of the cluster that a form's options name, None when it is not of other machines."""
    try:
        target = cluster_configs.find(options["compute_target"])
        if not registry.get("clusters", target.kind).far:
            return None
        needs = status.needs(options["distributed_backend"])
    except DistDLError:
        return None
    return cached_status(target, needs, patience=patience, fresh=fresh)


def shown(found: CachedStatus | None) -> dict[str, Any]:
    """Return it as plain data, {} when there is nothing to show; of the checks only what needs a remedy."""
    if found is None:
        return {}
    known = found.standing
    wrong = [one for one in merge_hosts(found.checks or ()) if one.level in _FOUND]
    return {
        "looking": found.looking,
        "known": known is not None,
        "problem": known.problem if known else "",
        "remedy": known.remedy if known else "",
        "nodes": [dataclasses.asdict(node) for node in known.nodes] if known else [],
        "checked": found.checks is not None,
        "checks": [dataclasses.asdict(one) for one in sorted(wrong, key=lambda one: _FOUND[one.level])],
    }


def gpus_per_node(options: Mapping[str, Any]) -> int:
    """Return the GPUs that every node of the chosen cluster has, as far as it is known."""
    found = look(options, 0.0)
    nodes = [node for node in found.standing.nodes if node.state == "up"] if found and found.standing else []
    return min((node.gpus for node in nodes), default=0)

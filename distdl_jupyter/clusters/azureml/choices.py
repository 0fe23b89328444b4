"""What the options of a cluster of the kind azureml may be, as far as the account that is signed in sees it.

Subscription, workspace (which brings its resource group), compute cluster, and the sizes that new nodes can have. Each
is one list of the resource manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from distdl_jupyter.clusters.azureml import computes, refusals
from distdl_jupyter.clusters.azureml.computes import Compute, Computes
from distdl_jupyter.clusters.azureml.wanted import known_size
from distdl_jupyter.clusters.machines import Choice
from distdl_jupyter.core.humanize import plural

FIELDS = ("subscription_id", "resource_group", "workspace", "compute", "vm_size")
_SUBSCRIPTIONS_API = "2022-12-01"


def choices(field: str, options: Mapping[str, Any]) -> list[Choice]:
    """Return the values of one of ``FIELDS``. Raises DistDLError, above all for what must come first."""
    place = SimpleNamespace(**{name: str(options.get(name) or "") for name in FIELDS})
    return _OF[field](place)


def _subscriptions(_place: Any) -> list[Choice]:
    from distdl_jupyter.azure import identity

    found = identity.rest().pages("/subscriptions", _SUBSCRIPTIONS_API)
    return [
        Choice(str(one["subscriptionId"]), str(one.get("displayName") or one["subscriptionId"]))
        for one in found
        if one.get("state", "Enabled") in ("Enabled", "Warned", "PastDue")
    ]


def _workspaces(place: Any) -> list[Choice]:
    found = sorted(_located(place), key=lambda one: (one[1], one[0]))
    return [Choice(name, name, f"{group}, {where}", {"resource_group": group}) for name, group, where in found]


def _groups(place: Any) -> list[Choice]:
    """Return the groups that hold a workspace: others are of no use here."""
    return [Choice(group) for group in sorted({group for _, group, _ in _located(place)})]


def _located(place: Any) -> list[tuple[str, str, str]]:
    """Return name, resource group and region of each workspace of the subscription."""
    from distdl_jupyter.azure import identity

    rest, subscription = identity.rest(), computes.subscription_of(place)
    with refusals.translated(place):
        found = list(computes.workspaces(rest, subscription))
    return [(str(one["name"]), str(one["id"]).split("/")[4], str(one.get("location", ""))) for one in found]


def _computes(place: Any) -> list[Choice]:
    return [Choice(one.name, one.name, words(one)) for one in Computes(place).all()]


def words(one: Compute) -> str:
    """Return a compute cluster in a few words: "Standard_NC4as_T4_v3, 1 of 4 nodes up"."""
    parts = [proper(one.vm_size), f"{one.nodes} of {plural(one.max_nodes, 'node')} up"]
    if one.low_priority:
        parts.append("low priority")
    return ", ".join(parts)


def proper(size: str) -> str:
    """Return a size's name as documents write it; Azure ML answers in capitals."""
    known = known_size(size)
    return known.size if known else size


def _sizes(place: Any) -> list[Choice]:
    """Return the sizes that the workspace's region offers, those with GPUs first; what is retired is left out."""
    there = Computes(place)
    found = [one for one in there.sizes(there.location()) if not _is_retired(str(one.get("name", "")))]
    found.sort(key=lambda one: (not one.get("gpus"), one.get("gpus") or 0, one.get("vCPUs") or 0, str(one["name"])))
    return [Choice(proper(str(one["name"])), "", _size_words(one)) for one in found]


def _is_retired(name: str) -> bool:
    known = known_size(name)
    return known is not None and known.retired


def _size_words(one: Mapping[str, Any]) -> str:
    known = known_size(str(one["name"]))
    gpus = int(one.get("gpus") or 0)
    parts = [known.gpus_text if known else plural(gpus, "GPU") if gpus else "no GPU"]
    if cores := int(one.get("vCPUs") or 0):
        parts.append(f"{cores} vCPUs")
    if memory := one.get("memoryGB"):
        parts.append(f"{float(memory):g} GB")
    if known is not None and known.infiniband:
        parts.append("InfiniBand")
    return ", ".join(parts)


_OF = {"subscription_id": _subscriptions, "resource_group": _groups, "workspace": _workspaces, "compute": _computes,
       "vm_size": _sizes}  # fmt: skip

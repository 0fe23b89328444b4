"""What Azure refuses about compute clusters, as one sentence with its remedy.

Azure's codes differ between its parts, so its words count as well. The texts were read in public issues and in the
documents on quotas (learn.microsoft.com, how-to-manage-quotas) and on roles (how-to-assign-roles).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec

_MISSING = {
    "SubscriptionNotFound": ("subscription_id", "No subscription {subscription_id} is visible to this account.",
                             "Choose one that distdl azure subscriptions lists, or sign in to its tenant."),
    "InvalidSubscriptionId": ("subscription_id", "{subscription_id} is no subscription's id.",
                              "Choose one that distdl azure subscriptions lists."),
    "ResourceGroupNotFound": ("resource_group", "There is no resource group {resource_group} in this subscription.",
                              "Choose the workspace from the list, which brings its group."),
}  # fmt: skip
_QUOTA = re.compile(r"quota", re.IGNORECASE)
_SIZE = re.compile(r"(vm ?size|sku)\b.*(not (supported|available|valid|found)|invalid)|(not supported|not available)"
                   r".*(vm ?size|sku|region)", re.IGNORECASE | re.DOTALL)  # fmt: skip
_SUBNET = re.compile(r"subnet|virtual network|vnet", re.IGNORECASE)
_CAPACITY = re.compile(r"AllocationFailed|capacity|SkuNotAvailable|OverconstrainedAllocation", re.IGNORECASE)
_LOCK = re.compile(r"ScopeLocked|locked", re.IGNORECASE)

QUOTA = (
    "Take fewer nodes or another size, or ask for more quota of this VM family: Azure Machine Learning has a quota of "
    "its own (ml.azure.com, Quota)."
)
_SIZES = "Choose a size that is offered there: distdl clusters compute sizes NAME lists them."


def is_elsewhere(error: AzureRefused) -> bool:
    """Say whether a 404 is about the way to a compute cluster, not about it."""
    return error.azure_code in _MISSING or ("workspaces/" in error.message and "/computes" not in error.message)


@contextlib.contextmanager
def translated(place: Any) -> Iterator[None]:
    """Turn what Azure refuses inside into a sentence for users of this cluster."""
    try:
        yield
    except AzureRefused as error:
        raise better(error, place) from None


def better(error: AzureRefused, place: Any) -> DistDLError:
    """Return the error that says what was refused and what helps; the same error where nothing is known of it."""
    if error.azure_code in _MISSING:
        field, says, hint = _MISSING[error.azure_code]
        named = {name: getattr(place, name) for name in ("subscription_id", "resource_group")}
        return InvalidSpec(says.format(**named), field=field, hint=hint)
    if error.status == 404 and is_elsewhere(error):
        return InvalidSpec(f"There is no workspace {place.workspace} in the resource group {place.resource_group}.",
                           field="workspace", hint="Choose one of the list.")  # fmt: skip
    if error.status == 403 and error.azure_code != "ScopeLocked":
        return AzureRefused(
            "This account may not do that with compute clusters of the workspace.",
            status=403,
            azure_code=error.azure_code,
            hint="Ask its owner for the role AzureML Compute Operator, or sign in otherwise.",
        )
    says, hint = explained(error.azure_code, error.message)
    return ClusterRefused(says, hint=hint) if hint else error


def explained(code: str, message: str) -> tuple[str, str]:
    """Return what Azure says and the remedy ("" when none is known), also for a failure that it tells afterwards."""
    both, says = f"{code} {message}", _said(message)
    for pattern, hint in (
        (_QUOTA, QUOTA),
        (_CAPACITY, "Azure has no such machines free there now: try again later, another size, or another region."),
        (_SIZE, _SIZES),
        (_SUBNET, "Give the whole id of a subnet in the workspace's region that this account may join."),
        (_LOCK, "Ask for the lock on the resource group to be taken away: compute clusters cannot change under one."),
    ):
        if pattern.search(both):
            return says, hint
    return says, ""


def _said(message: str) -> str:
    """Return the service's own words without who said them, as one sentence."""
    text = re.sub(r"^\S+ answered \d+(?: \w+)?: ", "", message).strip().split("\n", 1)[0]
    return text if text.endswith(".") else f"{text}."

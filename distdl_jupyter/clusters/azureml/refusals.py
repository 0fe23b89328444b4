"""What Azure refuses about compute clusters, as one sentence with its remedy.

Azure's codes differ between its parts, so its words count as well. The texts were read in public issues and in the
documents on quotas (learn.microsoft.com, how-to-manage-quotas) and on roles (how-to-assign-roles).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from distdl_jupyter.azure.rest import masked
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec

_MISSING = {
    "SubscriptionNotFound": ("subscription_id", "No subscription {subscription_id} is visible to this account.",
                             "Sign in to its tenant, or choose another subscription: distdl azure subscriptions"),
    "InvalidSubscriptionId": ("subscription_id", "{subscription_id} is not a valid subscription ID.",
                              "List the subscriptions of this account: distdl azure subscriptions"),
    "ResourceGroupNotFound": ("resource_group", "This subscription has no resource group {resource_group}.",
                              "Correct the option resource_group."),
}  # fmt: skip
_QUOTA = re.compile(r"quota", re.IGNORECASE)
_SIZE = re.compile(r"(vm ?size|sku)\b.*(not (supported|available|valid|found)|invalid)|(not supported|not available)"
                   r".*(vm ?size|sku|region)", re.IGNORECASE | re.DOTALL)  # fmt: skip
_SUBNET = re.compile(r"subnet|virtual network|vnet", re.IGNORECASE)
_CAPACITY = re.compile(r"AllocationFailed|capacity|SkuNotAvailable|OverconstrainedAllocation", re.IGNORECASE)
_LOCK = re.compile(r"ScopeLocked|locked", re.IGNORECASE)

QUOTA = (
    "Use fewer nodes or another size, or request more quota for this VM family. Azure Machine Learning has its "
    "own quota (ml.azure.com, Quota)."
)
_SIZES = "Choose a size that the region offers: az ml compute list-sizes"


@contextlib.contextmanager
def translated(place: Any) -> Iterator[None]:
    """Turn what Azure refuses inside into a sentence for users of this cluster."""
    from azure.core.exceptions import AzureError, HttpResponseError

    try:
        yield
    except AzureRefused as error:
        raise better(error, place) from None
    except HttpResponseError as error:
        refused = AzureRefused(
            masked(error.error.message or error.message if error.error else error.message),
            code="azure-request-refused",
            status=error.status_code or 0,
            azure_code=(error.error.code or "") if error.error else "",
        )
        raise better(refused, place) from None
    except AzureError as error:
        raise AzureRefused(
            f"Azure cannot be reached: {masked(str(error))[:300]}",
            code="azure-unreachable",
            hint="Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY.",
        ) from None


def better(error: AzureRefused, place: Any) -> DistDLError:
    """Return the error that says what was refused and what helps; the same error where nothing is known of it."""
    if error.azure_code in _MISSING:
        field, says, hint = _MISSING[error.azure_code]
        named = {name: getattr(place, name) for name in ("subscription_id", "resource_group")}
        return InvalidSpec(
            says.format(**named), code=f"azureml-{field.replace('_', '-')}-not-found", field=field, hint=hint
        )
    if error.status == 404 and "workspaces/" in error.message and "/computes" not in error.message:
        return InvalidSpec(
            f"The resource group {place.resource_group} has no workspace {place.workspace}.",
            code="azureml-workspace-not-found",
            field="workspace",
            hint="Correct the options workspace and resource_group.",
        )
    if error.status == 403 and error.azure_code != "ScopeLocked":
        return AzureRefused(
            "This account does not have permission to change the compute clusters of the workspace.",
            code="azureml-compute-forbidden",
            status=403,
            azure_code=error.azure_code,
            hint="Ask the owner for the role AzureML Compute Operator, or sign in with another account.",
        )
    says, hint = explained(error.azure_code, error.message)
    return ClusterRefused(says, code="azureml-compute-refused", hint=hint) if hint else error


def explained(code: str, message: str) -> tuple[str, str]:
    """Return what Azure says and the remedy ("" when none is known), also for a failure that it tells afterwards."""
    both, says = f"{code} {message}", _said(message)
    for pattern, hint in (
        (_QUOTA, QUOTA),
        (
            _CAPACITY,
            "Azure has no capacity for this size in the region now. Try again later, or use another size or region.",
        ),
        (_SIZE, _SIZES),
        (_SUBNET, "Set subnet to the full ID of a subnet in the workspace's region that this account may join."),
        (
            _LOCK,
            "Ask for the lock on the resource group to be removed, because it prevents changes of compute clusters.",
        ),
    ):
        if pattern.search(both):
            return says, hint
    return says, ""


def _said(message: str) -> str:
    """Return the service's own words without who said them, as one sentence."""
    text = re.sub(r"^\S+ answered \d+(?: \w+)?: ", "", message).strip().split("\n", 1)[0]
    return text if text.endswith(".") else f"{text}."

"""What Azure rejects about jobs and compute clusters, as one sentence with its remedy.

Azure's codes differ between its parts, so its words count as well. The texts were read in public issues and in the
documents on quotas (learn.microsoft.com, how-to-manage-quotas) and on roles (how-to-assign-roles).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.client import Address

_CHECK = "Check the options subscription_id, resource_group and workspace."
#: What Azure writes, and what helps; the first match counts.
_REMEDIES = (
    (
        r"preempt|evict|low.?priority",
        "Azure preempted the low-priority nodes. Submit the job again from a checkpoint, or use dedicated nodes.",
    ),
    (r"image build|build.*image|docker", "Check the build log above and the option environment."),
    (
        r"quota|cores? limit",
        "Use fewer nodes or another size, or request more quota for this VM family. Azure Machine Learning has its own "
        "quota (ml.azure.com, Quota).",
    ),
    (
        r"AllocationFailed|capacity|SkuNotAvailable",
        "Azure has no capacity for this size in the region now. Try again later, or use another size or region.",
    ),
    (
        r"(vm ?size|sku)\b.*(not (supported|available|valid|found)|invalid)",
        "Choose a size that the region offers: az ml compute list-sizes",
    ),
    (r"ScopeLocked", "Ask for the lock on the resource group to be removed, because it prevents changes."),
    (r"compute target|compute .*not found", "Set the option compute to a compute target of the workspace."),
    (r"out of memory|oom|exit(ed)? .*137", "Use a VM size with more memory, or smaller batches."),
    (r"too many requests", "Azure limits the number of requests. Try again in a few minutes."),
    (r"environment", "Set the option environment to an image, or to an environment of the workspace."),
    (r"workspaces/|resource group|subscription", _CHECK),
)
_FORBIDDEN = re.compile(r"authoriz|permission|\b403\b", re.IGNORECASE)
_MISSING = {
    "SubscriptionNotFound": ("subscription_id", "No subscription {} is visible to this account."),
    "InvalidSubscriptionId": ("subscription_id", "{} is not a valid subscription ID."),
    "ResourceGroupNotFound": ("resource_group", "This subscription has no resource group {}."),
}


def remedy(text: str, role: str = "AzureML Data Scientist in the workspace") -> str:
    """Return what helps against an error of Azure, "" where nothing is known; ``role`` is what a user needs there."""
    for pattern, hint in _REMEDIES:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return hint
    return f"Ask for the role {role}." if _FORBIDDEN.search(text) else ""


@contextlib.contextmanager
def translated(options: Address | Any) -> Iterator[None]:
    """Turn what Azure rejects inside into an error for users of this workspace."""
    from azure.core.exceptions import AzureError, HttpResponseError

    try:
        yield
    except AzureRefused as error:
        raise _translate(error, options) from None
    except HttpResponseError as error:
        refused = AzureRefused(
            mask(error.error.message or error.message if error.error else error.message),
            code="azure-request-refused",
            status=error.status_code or 0,
            azure_code=(error.error.code or "") if error.error else "",
        )
        raise _translate(refused, options) from None
    except AzureError as error:
        raise AzureRefused(
            f"Azure cannot be reached: {mask(str(error))[:300]}",
            code="azure-unreachable",
            hint="Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY.",
        ) from None


def _translate(error: AzureRefused, options: Any) -> DistDLError:
    """Return the error that says what was rejected and what helps; the same error where nothing is known of it."""
    field, text = _MISSING.get(error.azure_code, ("", ""))
    if field:
        text = text.format(getattr(options, field))
    elif error.status == 404 and "workspaces/" in error.message and "/computes" not in error.message:
        field, text = "workspace", f"The resource group {options.resource_group} has no workspace {options.workspace}."
    if field:
        return InvalidSpec(text, code=f"azureml-{field.replace('_', '-')}-not-found", field=field, hint=_CHECK)
    if error.status == 404:  # a compute target that does not exist
        return error
    if error.status == 403 and error.azure_code != "ScopeLocked":
        return AzureRefused(
            "This account does not have permission to change the compute clusters of the workspace.",
            code="azureml-compute-forbidden",
            status=403,
            azure_code=error.azure_code,
            hint="Ask the owner for the role AzureML Compute Operator, or sign in with another account.",
        )
    text = re.sub(r"^\S+ responded with \d+(?: \w+)?: ", "", error.message).strip().split("\n", 1)[0]
    hint = remedy(f"{error.azure_code} {error.message}")
    return ClusterRefused(f"{text.rstrip('.')}.", code="azureml-compute-refused", hint=hint) if hint else error


def rejected(error: Exception) -> LaunchFailed:
    """Return why Azure ML did not accept a job, in one sentence with a remedy; no signature is in it."""
    if isinstance(error, AzureRefused):
        return LaunchFailed(f"Azure ML rejected the job: {error.message}", code=error.code, hint=error.hint)
    message = getattr(getattr(error, "error", None), "message", None) or getattr(error, "message", None) or str(error)
    text = mask(" ".join(str(message).split("\n", 1)[0].split()))[:400].rstrip(".")
    return LaunchFailed(
        f"Azure ML rejected the job: {text or type(error).__name__}.",
        code="azureml-job-rejected",
        hint=remedy(f"{getattr(error, 'status_code', '')} {text}"),
    )


def failure(error: str) -> str:
    """Return why a job failed in Azure ML, in one line, with a remedy where one is known."""
    text = " ".join(error.split())[:600].rstrip(".")
    if not text:
        return "The job failed in Azure ML. Azure gives no reason."
    role = "Storage Blob Data Reader on the storage account for the identity of the compute target"
    return f"The job failed in Azure ML: {text}. {remedy(text, role)}".strip()


def message_of(details: dict[str, object]) -> str:
    """Return the message of a run's error, with those inside it, "" for none."""
    messages: list[str] = []
    _collect(details.get("error"), messages)
    return " ".join(dict.fromkeys(messages))


def _collect(details: object, messages: list[str]) -> None:
    if isinstance(details, dict):
        if isinstance(message := details.get("message"), str) and message:
            messages.append(message)
        for name in ("error", "innerError", "innererror", "details"):
            _collect(details.get(name), messages)
    elif isinstance(details, list):
        for item in details:
            _collect(item, messages)

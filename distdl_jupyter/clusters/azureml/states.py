"""Azure ML's words for how a job stands, and what its errors mean, in words. Pure.

The states are those of azure-ai-ml's ``RunStatus``.
"""

from __future__ import annotations

import re

ENDED = frozenset({"Completed", "Failed", "Canceled"})
_WAITING = {
    "": "was submitted",
    "NotStarted": "was submitted",
    "Queued": "waiting for free nodes",
    "Preparing": "preparing the image; the first build takes a few minutes",
    "Provisioning": "starting the nodes",
    "Starting": "preparing the nodes",
    "Paused": "is paused",
}
_REMEDIES = (
    (
        r"preempt|evict|low.?priority",
        "Azure preempted the low-priority nodes. Submit the job again from a checkpoint, or use dedicated nodes.",
    ),
    (r"image build|build.*image|docker", "Check the build log above and the option environment."),
    (r"quota|cores? limit", "Request more quota for the VM size, or use fewer nodes or another size."),
    (r"compute target|compute .*not found", "Set the option compute to a compute target of the workspace."),
    (
        r"authoriz|permission|AuthorizationFailure|403",
        "Assign the identity of the compute target the role Storage Blob Data Reader on the storage account.",
    ),
    (r"out of memory|oom|exit(ed)? .*137", "Use a VM size with more memory, or smaller batches."),
)


def waiting(status: str) -> str:
    """Return why a job has not begun, with Azure's word, "" for one that has."""
    words = _WAITING.get(status)
    return "" if words is None else words + (f" ({status})" if status else "")


def failure(error: str) -> str:
    """Return Azure's error in one line, with a remedy where one is known."""
    said = " ".join(error.split())[:600].rstrip(".")
    if not said:
        return "The job failed in Azure ML. Azure gives no reason."
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, said, re.IGNORECASE)), "")
    return f"The job failed in Azure ML: {said}. {remedy}".strip()


def error_of(details: dict[str, object]) -> str:
    """Return the message of a run's error, with those inside it, "" for none."""
    found: list[str] = []
    _collect(details.get("error"), found)
    return " ".join(dict.fromkeys(found))


def _collect(details: object, found: list[str]) -> None:
    if isinstance(details, dict):
        if isinstance(message := details.get("message"), str) and message:
            found.append(message)
        for name in ("error", "innerError", "innererror", "details"):
            _collect(details.get(name), found)
    elif isinstance(details, list):
        for one in details:
            _collect(one, found)

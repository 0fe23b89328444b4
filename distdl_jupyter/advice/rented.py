"""Rules about rented machines: what a subscription may rent, what it costs to forget them, what may be taken away.

They speak only where somebody rents: of a size by what Azure told of it, of money where the cluster bills.
"""

from __future__ import annotations

import re

from distdl_jupyter.advice.model import Advice, Case
from distdl_jupyter.core.humanize import TIMES, plural
from distdl_jupyter.worker.watch import frameworks

#: What a job without a limit is given by a click; Amazon SageMaker's default for a training job.
DAY = 86_400.0
QUOTAS = "https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas"
LOW_PRIORITY = "https://learn.microsoft.com/azure/machine-learning/how-to-create-attach-compute-cluster"


def barred_size(case: Case) -> Advice | None:
    """A size that Azure says the subscription cannot rent in the region that was asked about."""
    size = case.request.vm_size
    if size is None or size.retired or not size.restriction:
        return None
    return Advice(
        "barred-size", "warning", "Size not available",
        f"{size.name} is {size.restriction}. Choose another size, or another region with %dist_config azure "
        "region=....",
        source="; ".join(size.origin_texts),
    )  # fmt: skip


def beyond_quota(case: Case) -> Advice | None:
    """More vCPUs than the subscription's quota leaves, where the nodes are still to be made.

    The nodes of a compute cluster that is there count against the quota already, also while they are down.
    """
    request, size = case.request, case.request.vm_size
    if size is None or size.retired or size.vcpus is None or request.nodes_exist or request.interruptible:
        return None
    quota = size.quota
    if quota is None or quota.left is None or request.node_count * size.vcpus <= quota.left:
        return None
    fits = quota.left // size.vcpus
    return Advice(
        "beyond-quota", "warning", "Quota too small",
        f"{request.node_count} {TIMES} {size.name} need {request.node_count * size.vcpus:,} vCPUs, but the quota of "
        f"{quota.service} has {quota.left:,} of {quota.limit:,} left for this family. Request more in the portal, or "
        "use fewer nodes.",
        action=f"Use {plural(fits, 'node')}" if fits else "", change={"node_count": fits} if fits else {},
        source=QUOTAS,
    )  # fmt: skip


def may_be_taken_away(case: Case) -> Advice | None:
    """Nodes of low priority end a job at any moment; what it has not written by then is lost."""
    request = case.request
    if not request.interruptible or re.search(frameworks.SAVES, request.code, re.IGNORECASE):
        return None
    return Advice(
        "no-checkpoints", "warning", "No checkpoints on preemptible nodes",
        "Low-priority and Spot nodes are cheaper but can be preempted at any time. The job then restarts from the "
        "beginning, because this code writes no checkpoints.",
        action=f"Copy {frameworks.SAVE.partition('(')[0]}(...)", snippet=frameworks.SAVE, source=LOW_PRIORITY,
    )  # fmt: skip


def no_time_limit(case: Case) -> Advice | None:
    """A job that hangs on nodes that cost money goes on costing it until somebody looks."""
    request = case.request
    if not request.bills or request.max_run_duration_seconds:
        return None
    rate = f", {request.rate}" if request.rate else ""
    return Advice(
        "no-time-limit", "info", "No time limit",
        f"If this job hangs, nothing stops it, and its nodes cost money for every hour{rate}.",
        action="Stop after 24 h", change={"max_run_duration_seconds": DAY},
    )  # fmt: skip

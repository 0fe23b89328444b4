"""Rules about rented machines: what it costs to forget them, and what may be taken away."""

from __future__ import annotations

import re

from distdl_jupyter.advice.model import Advice, Case
from distdl_jupyter.worker.watch import frameworks

#: What a job without a limit is given by a click; Amazon SageMaker's default for a training job.
DAY = 86_400.0
LOW_PRIORITY = "https://learn.microsoft.com/azure/machine-learning/how-to-create-attach-compute-cluster"


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

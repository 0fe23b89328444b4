"""One job as a row of a list: cheap enough to make for hundreds of jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.state import State
from distdl_jupyter.presentation.jobrow import JobRow
from distdl_jupyter.presentation.metric import favourite, spark
from distdl_jupyter.presentation.plain import finite

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView


def job_row(view: JobView, spec: JobSpec, now: float, *, has_checkpoints: bool = False) -> JobRow:
    """Return the row of a job at the moment ``now`` (epoch seconds)."""
    shown = view.metrics.get(favourite(list(view.metrics)))
    return JobRow(
        id=view.id,
        name=view.name,
        state=view.state.value,
        says=_says(view),
        compute_target=view.compute_target,
        backend=view.distributed_backend,
        node_count=view.node_count,
        process_count_per_node=view.process_count_per_node,
        created=view.created,
        ended=view.ended,
        last_sign=view.last_sign,
        done=finite(view.done),
        total=finite(view.total),
        left=finite(view.remaining(now)),
        metric=shown.name if shown else "",
        value=finite(shown.mean) if shown else None,
        spark=spark(shown),
        failed_rank=view.failure.rank if view.failure and view.failure.kind != "unequal" else None,
        notebook=spec.source.notebook,
        can_rerun=view.state.ended,
        can_resume=view.state.ended and has_checkpoints,
        restarts=view.restart_count,
        stalled=view.stall is not None and not view.state.ended,
    )


def _says(view: JobView) -> str:
    """Return the few words that a list has room for: what failed, what is waited for, what ranks that stay run."""
    if view.state is State.FAILED and view.failure is not None:
        if view.failure.kind == "unequal":
            return view.failure.what.rpartition(": ")[2]
        what = view.failure.what.split(":")[0]
        return f"{what} on rank {view.failure.rank}" if view.process_count > 1 else what
    if view.elsewhere is not None:
        return view.elsewhere.says()
    if view.state is State.RUNNING and view.stall is not None:
        return view.stall.text
    if view.state in (State.QUEUED, State.PREPARING, State.STARTING, State.RUNNING) and view.phases:
        return view.phases[-1].detail
    return view.reason

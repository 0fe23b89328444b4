"""One job as a row of a list: cheap enough to make for hundreds of jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.state import State
from distdl_jupyter.presentation.card import finite, state_name
from distdl_jupyter.presentation.curve import favourite
from distdl_jupyter.presentation.schema import JobRow

if TYPE_CHECKING:
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView

#: Points of the small curve.
_POINTS = 40


def job_row(view: JobView, book: SeriesBook, spec: JobSpec, now: float) -> JobRow:
    """Return the row of a job at the moment ``now`` (epoch seconds)."""
    metric = favourite(list(view.metrics))
    return JobRow(
        id=view.id,
        name=view.name,
        state=state_name(view),
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
        metric=metric,
        value=finite(view.metrics[metric].mean) if metric else None,
        spark=spark(book, metric),
        failed_rank=view.failure.rank if view.failure else None,
        notebook=spec.source.notebook,
        can_rerun=view.state.ended,
    )


def _says(view: JobView) -> str:
    """Return the few words that a list has room for: what failed, what is waited for."""
    if view.state is State.FAILED and view.failure is not None:
        what = view.failure.what.split(":")[0]
        return f"{what} on rank {view.failure.rank}" if view.process_count > 1 else what
    if view.state in (State.QUEUED, State.PREPARING, State.STARTING) and view.phases:
        return view.phases[-1].detail
    return view.reason


def spark(book: SeriesBook, metric: str) -> tuple[float | None, ...]:
    """Return the means of a metric at up to 40 places spread over its curve, () for fewer than two."""
    means = [row.mean for row in book.band(metric).rows] if metric else []
    if len(means) < 2:
        return ()
    most = min(_POINTS, len(means))
    return tuple(finite(means[round(at * (len(means) - 1) / (most - 1))]) for at in range(most))

"""Jobs as a table, for a notebook and for a terminal. Everything that comes from jobs is set as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.core.state import State
from distdl_jupyter.presentation import table

if TYPE_CHECKING:
    from distdl_jupyter.presentation.jobrow import JobRow

HEAD = ("Id", "State", "Name", "Processes", "Backend", "Elapsed", "Last", "Created")
_EMPTY = "No jobs yet. Put %%distributed -p 2 on top of a cell that trains."


class JobTable:
    """Shows itself; ``older`` is how many more jobs there are."""

    def __init__(self, jobs: Sequence[JobRow], older: int = 0, now: float | None = None) -> None:
        self._rows = cells(jobs, time.time() if now is None else now)
        self._older = older

    def __repr__(self) -> str:
        if not self._rows:
            return _EMPTY
        return "\n".join([table.whole_text([HEAD, *self._rows]), *([self._more()] if self._older else [])])

    def _repr_html_(self) -> str:
        from html import escape

        if not self._rows:
            return f"<p>{escape(_EMPTY)}</p>"
        more = f"<p>{escape(self._more())}</p>" if self._older else ""
        return f"{table.whole_html([HEAD, *self._rows])}{more}"

    def _more(self) -> str:
        return f"{words.plural(self._older, 'older job')}: %dist_jobs --all"


def cells(jobs: Sequence[JobRow], now: float, *, signs: bool = True) -> list[tuple[str, ...]]:
    """Return what stands below ``HEAD`` at the moment ``now`` (epoch seconds); ``signs``: a shape beside each state."""
    return [
        (
            job.id,
            _state(job, signs=signs),
            job.name,
            words.processes(job.node_count, job.process_count_per_node),
            job.backend,
            words.duration((now if job.ended is None else job.ended) - job.created),
            _last(job),
            words.ago(max(0.0, now - job.created)),
        )
        for job in jobs
    ]


def _state(job: JobRow, *, signs: bool) -> str:
    state = State(job.state)
    told = f"{words.SHAPE_SIGNS[words.STATE_SHAPES[state]]} {words.STATE_WORDS[state]}" if signs else job.state
    if state is State.RUNNING and job.total and job.done is not None:
        told += f" {words.percent(job.done, job.total)}"
    return told


def _last(job: JobRow) -> str:
    """Return the newest mean of the metric that matters most; one that is not finite is told as such."""
    if not job.metric:
        return ""
    return f"{job.metric} {'not finite' if job.value is None else words.number(job.value)}"

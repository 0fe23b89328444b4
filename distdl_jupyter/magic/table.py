"""Jobs as a table, for a notebook and for a terminal. Everything that comes from jobs is set as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.core.state import State
from distdl_jupyter.presentation import table

if TYPE_CHECKING:
    from distdl_jupyter.core.view import JobView

_HEAD = ("Id", "State", "Name", "Processes", "Backend", "Elapsed", "Last", "Created")
_EMPTY = "No jobs yet. Put %%distributed -p 2 on top of a cell that trains."


class JobTable:
    """Shows itself; ``older`` is how many more jobs there are."""

    def __init__(self, views: Sequence[JobView], older: int = 0, now: float | None = None) -> None:
        self._rows = [_row(view, time.time() if now is None else now) for view in views]
        self._older = older

    def __repr__(self) -> str:
        if not self._rows:
            return _EMPTY
        return "\n".join([table.whole_text([_HEAD, *self._rows]), *([self._more()] if self._older else [])])

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<p>{escape(_EMPTY)}</p>"
        more = f"<p>{escape(self._more())}</p>" if self._older else ""
        return f"{table.whole_html([_HEAD, *self._rows])}{more}"

    def _more(self) -> str:
        return f"{words.plural(self._older, 'older job')}: %dist_jobs --all"


def _row(view: JobView, now: float) -> tuple[str, ...]:
    shape = words.SHAPE_SIGNS[words.STATE_SHAPES[view.state]]
    state = f"{shape} {words.STATE_WORDS[view.state]}"
    if view.state is State.RUNNING and view.total and view.done is not None:
        state += f" {words.percent(view.done, view.total)}"
    last = next((f"{metric.name} {words.number(metric.mean)}" for metric in view.metrics.values()), "")
    return (
        view.id,
        state,
        view.name,
        words.processes(view.node_count, view.process_count_per_node),
        view.distributed_backend,
        words.duration(view.elapsed(now)),
        last,
        words.ago(max(0.0, now - view.created)),
    )

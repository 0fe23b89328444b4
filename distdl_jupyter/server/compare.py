"""Jobs side by side over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import environment
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.jobs.readers import CurveReader
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.schema import CompareQuery, Comparison
from distdl_jupyter.views import compare
from distdl_jupyter.views.ended_cache import listed

if TYPE_CHECKING:
    from distdl_jupyter.views.job_table import JobRow

#: Curves that can still be told apart.
MOST = 12


class Compare(Handler):
    """Several jobs."""

    @answers(Comparison, query=CompareQuery, refuses=(404,))
    async def get(self, query: CompareQuery) -> Comparison:
        """Compare jobs: their curves of one metric in one figure, and the options that differ."""
        return await self.run_in_thread(_compared, query)


def _compared(query: CompareQuery) -> Comparison:
    ids = list(dict.fromkeys(query.ids))
    if not 1 <= len(ids) <= MOST:
        raise InvalidSpec(f"ids must be 1 to {MOST} different jobs.", code="compare-ids-invalid", field="ids")
    readings = [_read(id_) for id_ in ids]
    subjects = [compare.ComparedJob(one.spec, one.view, one.book, environment.read(one.folder)) for one in readings]
    metric = compare.chosen_metric(subjects, query.metric)
    return Comparison(
        curve=compare.compared_curve(subjects, metric, dark=query.dark, width=query.width, height=query.height),
        jobs=tuple(_row(one) for one in readings),
        metrics=compare.metric_names(subjects),
        rows=compare.differing_rows(subjects),
    )


def _read(id_: str) -> CurveReader:
    reading = CurveReader(attached(id_).folder)
    reading.catch_up()
    return reading


def _row(one: CurveReader) -> JobRow:
    return listed(one.folder, one.view, one.spec).row

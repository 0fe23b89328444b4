"""A curve for those who cannot see it, in words and as a short table; and which curve to show first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.core.figure import Mode, figure
from distdl_jupyter.presentation.plain import finite
from distdl_jupyter.presentation.schema import Curve, MetricValue

if TYPE_CHECKING:
    from distdl_jupyter.core.curves import Band, Row
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.view import JobView

#: Rows of the table.
_ROWS = 24


def metrics(view: JobView) -> tuple[MetricValue, ...]:
    """Return each metric with its newest mean over ranks."""
    return tuple(
        MetricValue(name, words.number(one.mean), finite(one.mean), finite(one.step) or 0.0, one.count)
        for name, one in view.metrics.items()
    )


def curve(
    book: SeriesBook, metric: str, *, mode: Mode = "band", log: bool = False, dark: bool = False,
    width: int | None = None, height: int | None = None,
) -> Curve:  # fmt: skip
    """Return a metric drawn and told (see ``core.figure.figure`` for the options)."""
    drawn = figure(book, metric, mode=mode, log=log, dark=dark, width=width, height=height)
    band = book.band(metric)
    return Curve(
        metric=metric,
        mode=mode,
        log=log,
        count=book.count(metric),
        data=tuple(drawn["data"]),
        layout=drawn["layout"],
        summary=summary(metric, band),
        table=tuple(tuple(cells) for cells in table(band)),
    )


def summary(metric: str, band: Band) -> str:
    """Return a curve as one sentence: first, last and extent."""
    rows = [row for row in band.rows if row.mean is not None]
    if not rows:
        return f"Curve of {metric}: no values yet"
    first, last = rows[0], rows[-1]
    low = min(row.low for row in rows if row.low is not None)
    high = max(row.high for row in rows if row.high is not None)
    return (
        f"Curve of {metric} over {words.plural(last.step - first.step, 'step')}: from {_number(first.mean)} to "
        f"{_number(last.mean)}, lowest {words.number(low)}, highest {words.number(high)}"
    )


def table(band: Band) -> list[list[str]]:
    """Return at most ``_ROWS`` rows spread over the curve: step, mean, lowest (rank), highest (rank)."""
    rows = band.rows
    if len(rows) > _ROWS:
        rows = [rows[round(at * (len(rows) - 1) / (_ROWS - 1))] for at in range(_ROWS)]
    return [_table_row(row) for row in reversed(rows)]


def _table_row(row: Row) -> list[str]:
    return [
        words.count(row.step),
        _number(row.mean),
        _with_rank(row.low, row.low_rank),
        _with_rank(row.high, row.high_rank),
    ]


def _number(value: float | None) -> str:
    return words.number(value) if value is not None and math.isfinite(value) else "not a number"


def _with_rank(value: float | None, rank: int | None) -> str:
    return "" if value is None else f"{words.number(value)} ({rank})"

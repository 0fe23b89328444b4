"""A metric as a figure, and in words and as a short table for those who cannot see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core.figure import Earlier, Mode, figure
from distdl_jupyter.core.humanize import printable
from distdl_jupyter.views.wire import finite

if TYPE_CHECKING:
    from distdl_jupyter.core.series import Band, SeriesBook
    from distdl_jupyter.core.view import JobView

#: Rows of a table.
_ROWS = 24


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric's name with its newest mean over ranks, as a number and in words."""

    name: str
    value: str
    mean: float | None
    step: float
    #: Points that came over all ranks: a curve is drawn anew when this has changed.
    count: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A drawn metric: plotly's ``data`` and ``layout``, the curve in one sentence and as a table of a few rows.

    ``value`` is the newest mean over ranks, as its end shows it; "" where it has several ends.
    """

    metric: str
    mode: str
    log: bool
    count: int
    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    summary: str
    table: tuple[tuple[str, ...], ...]
    value: str


def metrics(view: JobView) -> tuple[MetricValue, ...]:
    """Return each metric with its newest mean over ranks."""
    return tuple(
        MetricValue(name, humanize.number(metric.mean), metric.mean, finite(metric.step) or 0.0, metric.count)
        for name, metric in view.metrics.items()
    )


def label(view: JobView, name: str) -> str:
    """Return a metric's name for a table: "loss", or "loss (from the output)" of one that ranks have printed."""
    return f"{name} (from the output)" if name in view.output_metrics else name


def curve(
    book: SeriesBook, metric: str, *, mode: Mode = "band", log: bool = False, earlier: Earlier | None = None
) -> Curve:
    """Return a metric with its figure, its summary and its table (see ``core.figure.figure`` for the options)."""
    drawn = figure(book, metric, mode=mode, log=log, earlier=earlier)
    band = book.band(metric)
    return Curve(
        metric=metric,
        mode=mode,
        log=log,
        count=book.count(metric),
        data=tuple(drawn["data"]),
        layout=drawn["layout"],
        value="" if band.last is None else humanize.number(band.last),
        summary=summary(metric, band),
        table=table(band),
    )


def summary(metric: str, band: Band) -> str:
    """Return a curve as one sentence: first, last and extent."""
    rows = [row for row in band.rows if row.mean is not None]
    if not rows:
        return f"Curve of {metric}: no values yet"
    first, last = rows[0], rows[-1]
    low = min(row.low for row in rows if row.low is not None)
    high = max(row.high for row in rows if row.high is not None)
    metric = printable(metric, 60)
    return (
        f"Curve of {metric} over {humanize.plural(last.step - first.step, 'step')}: from {_number(first.mean)} to "
        f"{_number(last.mean)}, lowest {humanize.number(low)}, highest {humanize.number(high)}"
    )


def table(band: Band) -> tuple[tuple[str, ...], ...]:
    """Return at most ``_ROWS`` rows spread over the curve, newest first: step, mean, lowest (rank), highest (rank)."""
    last = len(band.rows) - 1
    rows = band.rows if last < _ROWS else [band.rows[round(at * last / (_ROWS - 1))] for at in range(_ROWS)]
    return tuple(
        (
            humanize.count(row.step),
            _number(row.mean),
            _with_rank(row.low, row.low_rank),
            _with_rank(row.high, row.high_rank),
        )
        for row in reversed(rows)
    )


def _number(value: float | None) -> str:
    return humanize.number(value) if value is not None and math.isfinite(value) else "not a number"


def _with_rank(value: float | None, rank: int | None) -> str:
    return "" if value is None else f"{humanize.number(value)} ({rank})"

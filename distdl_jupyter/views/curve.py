"""The curve of a metric as data for a page, and as a sentence for users who cannot see the curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core import humanize
from distdl_jupyter.core.series import Band, MetricStore, RankCurve, Row, SourceJob
from distdl_jupyter.core.view import JobView

#: Whether a curve shows the range of the ranks, or a line for each.
_Mode = Literal["band", "ranks"]
#: Maximum number of points of all lines together.
_MAX_TOTAL_POINTS = 12_000
#: Maximum number of points of one line.
_MAX_POINTS = 1000


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric's name with its newest mean over ranks, as a number and as text; ``count`` is the number of points."""

    name: str
    value: str
    mean: float | None
    step: float
    count: int


@dataclass(frozen=True, slots=True)
class EarlierCurve:
    """The same metric of the job that a job continues from ``step``, or from its end if ``step`` is None."""

    name: str
    step: float | None
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a job. ``lines`` are those of the ranks in mode "ranks". ``summary`` is the curve in a sentence.

    ``value`` is the newest mean over ranks as text, or "" if there is none. Ranks printed a metric ``from_output``.
    """

    metric: str
    mode: _Mode
    band: Band
    lines: list[RankCurve]
    earlier: EarlierCurve | None
    from_output: bool
    value: str
    summary: str


def list_metrics(view: JobView) -> tuple[MetricValue, ...]:
    """Return each metric with its newest mean over ranks."""
    return tuple(
        MetricValue(name, humanize.number(metric.mean), metric.mean, metric.step, metric.count)
        for name, metric in view.metrics.items()
    )


def format_label(view: JobView, name: str) -> str:
    """Return a metric's name for a table: "loss", or "loss (from the output)" if the ranks printed it."""
    return f"{name} (from the output)" if name in view.output_metrics else name


def make_curve(
    store: MetricStore,
    metric: str,
    *,
    mode: _Mode = "band",
    source_job: SourceJob | None = None,
    from_output: bool = False,
) -> Curve:
    """Return the curve of a metric for a page."""
    band = store.get(metric).get_band()
    points = min(_MAX_POINTS, max(40, _MAX_TOTAL_POINTS // max(1, len(band.ranks))))
    lines = store.get(metric).get_curves(points) if mode == "ranks" else []
    source_rows = source_job.curves.get(metric).get_band().rows if source_job else []
    return Curve(
        metric=metric,
        mode=mode,
        band=band,
        lines=lines,
        earlier=EarlierCurve(source_job.name, source_job.step, source_rows) if source_job and source_rows else None,
        from_output=from_output,
        value="" if band.last is None else humanize.number(band.last),
        summary=summarize(metric, band),
    )


def summarize(metric: str, band: Band) -> str:
    """Return a curve as one sentence: first and last mean, lowest and highest value."""
    rows = [row for row in band.rows if row.mean is not None]
    if not rows:
        return f"Curve of {metric}: no values yet"
    first, last = rows[0], rows[-1]
    low = min(row.low for row in rows if row.low is not None)
    high = max(row.high for row in rows if row.high is not None)
    metric = humanize.printable(metric, 60)
    start, end, lowest, highest = (humanize.number(value or 0.0) for value in (first.mean, last.mean, low, high))
    return (
        f"Curve of {metric} over {humanize.plural(last.step - first.step, 'step')}: from {start} to "
        f"{end}, lowest {lowest}, highest {highest}"
    )

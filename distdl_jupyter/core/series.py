"""The curves of a job: metric events in bounded series, read as a band over ranks or as a curve of each rank.

Call ``MetricStore().apply(event)`` for each event in order; it takes about a microsecond per value.

* A bucket covers the steps ``i * 2**k <= step < (i + 1) * 2**k``. ``k`` is the smallest number for which a metric does
  not have too many buckets, so the order of the points does not matter.
* After a restart, whole buckets are removed from the first repeated step onwards; one with earlier points is kept.
* NaN and inf are excluded from means and extrema; a bucket also stores the first such value with its step.
"""

from __future__ import annotations

import html
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distdl_jupyter.core.events import Event

#: Maximum number of metrics: names that contain the step would otherwise fill the memory.
MAX_METRICS = 500
#: Steps above this and non-finite steps are ignored; nanoseconds since the epoch are below it.
MAX_STEP = 1e21
#: Maximum number of points of a curve.
MAX_POINTS = 1000
#: Maximum number of buckets of a metric; the curve also contains the exact first and last point.
MAX_BUCKETS = MAX_POINTS - 2
#: Maximum product of buckets and ranks of a metric.
_MAX_RANK_BUCKETS = 64_000
#: Number of buckets that a metric may have with any number of ranks.
_MIN_BUCKETS = 128
#: The first buckets are 1 / 2**20 wide, so steps that differ by a millionth are distinct.
_RESOLUTION = 2.0**20


@dataclass(frozen=True, slots=True)
class NonFiniteMarker:
    """A bucket with non-finite values: the first such step, each rank's first kind (nan, inf, -inf), the ranks."""

    step: float
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket over all ranks: the middle of its steps, and the ``time`` (epoch seconds) of its highest step.

    ``mean`` is the mean over ranks of each rank's mean, or None (a gap) if a rank reported only non-finite values.
    ``low`` and ``high`` are the exact extrema with the lowest rank that reached them; for a single step, those of the
    ranks' means, because several values of one rank at one step are not a band.
    """

    step: float
    time: float
    mean: float | None
    low: float | None = None
    low_rank: int | None = None
    high: float | None = None
    high_rank: int | None = None


@dataclass(slots=True)
class Band:
    """One metric over all ranks: at most 1,000 rows in order of steps, the first and the last at exact steps.

    ``last`` is the mean of the newest value of each rank that has reported since the last restart. It may be nan or
    inf, and is None without such a rank. The curve shows it at ``last_step``. It equals ``core.view.MetricView.mean``.
    """

    rows: list[Row] = field(default_factory=list)
    marks: list[NonFiniteMarker] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    last: float | None = None
    last_step: float = 0.0


@dataclass(slots=True)
class RankCurve:
    """One rank's curve: at most 1,000 means of buckets, with the exact first and last point. None is a gap."""

    rank: int
    steps: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    count: int = 0
    last: float | None = None


#: One rank's values in a bucket: count, sum, lowest and highest of the finite values; the first step with another
#: value, and that value (nan, inf, -inf).
_COUNT, _TOTAL, _LOW, _HIGH, _BAD_STEP, _BAD_VALUE = range(6)
_EMPTY_BUCKET = array("d", (0, 0, math.inf, -math.inf, math.inf, 0))


def _add_value(bucket: array[float], step: float, value: float) -> None:
    if math.isfinite(value):
        bucket[_COUNT] += 1
        bucket[_TOTAL] += value
        if value < bucket[_LOW]:
            bucket[_LOW] = value
        if value > bucket[_HIGH]:
            bucket[_HIGH] = value
    elif step < bucket[_BAD_STEP]:
        bucket[_BAD_STEP], bucket[_BAD_VALUE] = step, value


def _merge_bucket(bucket: array[float], other: array[float]) -> None:
    bucket[_COUNT] += other[_COUNT]
    bucket[_TOTAL] += other[_TOTAL]
    bucket[_LOW] = min(bucket[_LOW], other[_LOW])
    bucket[_HIGH] = max(bucket[_HIGH], other[_HIGH])
    if other[_BAD_STEP] < bucket[_BAD_STEP]:
        bucket[_BAD_STEP:] = other[_BAD_STEP:]


def _compute_mean(bucket: array[float]) -> float:
    return _clamp(bucket[_TOTAL] / bucket[_COUNT], bucket[_LOW], bucket[_HIGH])


def _clamp(mean: float, low: float, high: float) -> float:
    """Limit a mean to the extrema, which rounding may exceed; if the sum overflowed, return their middle."""
    return min(high, max(low, mean)) if math.isfinite(mean) else low / 2 + high / 2


def _average(values: Sequence[float]) -> float | None:
    return sum(value / len(values) for value in values) if values else None


@dataclass(slots=True)
class _Span:
    """The buckets of all ranks for the same steps: the lowest and highest step, and the latest time at the highest."""

    low: float
    high: float
    time: float
    buckets: dict[int, array[float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Series:
    """The points of one rank: their exact number, and the first and the last one as (step, time, value)."""

    count: int = 0
    first: tuple[float, float, float] | None = None
    last: tuple[float, float, float] | None = None


@dataclass(slots=True, eq=False)
class Metric:
    """One metric of a job: the series of its ranks in common buckets."""

    series: dict[int, _Series] = field(default_factory=dict)
    #: Number of points of all ranks.
    count: int = 0
    #: The ranks that have reported since the last restart (None if there was none), and the first step they reported.
    #: Later points replace those of the same and later steps.
    current_ranks: set[int] | None = None
    _repeated_from: float = math.inf
    _max_buckets: int = MAX_BUCKETS
    #: The buckets by number, and how many times their width has doubled.
    _spans: dict[int, _Span] = field(default_factory=dict)
    _doublings: int = 0

    def add(self, rank: int, step: float, value: float, time: float, points: int) -> None:
        """Add one point of a rank, which stands for ``points`` reports; ``step`` and ``time`` must be finite."""
        if self.current_ranks is not None and rank not in self.current_ranks:
            self._drop_repeated(rank, step, self.current_ranks)
        series = self.series.get(rank)
        if series is None:
            series = self.series[rank] = _Series()
            self._max_buckets = max(_MIN_BUCKETS, min(MAX_BUCKETS, _MAX_RANK_BUCKETS // len(self.series)))
        self.count += points
        series.count += points
        if series.last is None or (step, time) >= series.last[:2]:
            series.last = (step, time, value)
        if series.first is None or (step, time) < series.first[:2]:
            series.first = (step, time, value)
        # Multiplying by ``_RESOLUTION`` is exact; a smaller factor would round the smallest steps to 0.
        number = math.floor(step * _RESOLUTION) >> self._doublings
        span = self._spans.get(number)
        if span is None:
            span = self._spans[number] = _Span(step, step, time)
        elif (step, time) > (span.high, span.time):
            span.high, span.time = step, time
        elif step < span.low:
            span.low = step
        bucket = span.buckets.get(rank)
        if bucket is None:
            bucket = span.buckets[rank] = _EMPTY_BUCKET[:]
        _add_value(bucket, step, value)
        if len(self._spans) > self._max_buckets:
            self._coarsen()

    def _drop_repeated(self, rank: int, step: float, current_ranks: set[int]) -> None:
        """Remove the points that a rank repeats after a restart; the first rank to report decides for all ranks."""
        if not current_ranks:
            self._repeated_from = step
            for each_rank in self.series:
                self.remove_from(each_rank, step)
            self._spans = {number: span for number, span in self._spans.items() if span.low < step}
            for span in self._spans.values():
                span.high = min(span.high, step)
        elif step < self._repeated_from:
            self.remove_from(rank, step)
        current_ranks.add(rank)

    def remove_from(self, rank: int, step: float) -> None:
        """Remove one rank's values from ``step`` onwards; only buckets that start at or after ``step`` are removed."""
        if rank in self.series:
            series = self.series[rank]
            series.first = series.first if series.first is not None and series.first[0] < step else None
            series.last = series.last if series.last is not None and series.last[0] < step else None
            for span in self._spans.values():
                if span.low >= step:
                    span.buckets.pop(rank, None)

    def _group_spans(self, limit: int) -> tuple[int, dict[int, list[_Span]]]:
        """Return the spans in at most ``limit`` groups in order, and the doublings of the width that this takes."""
        doublings = 0
        while len({number >> doublings for number in self._spans}) > limit:
            doublings += 1
        groups: dict[int, list[_Span]] = {}
        for number, span in sorted(self._spans.items()):
            groups.setdefault(number >> doublings, []).append(span)
        return doublings, groups

    def _coarsen(self) -> None:
        doublings, groups = self._group_spans(self._max_buckets)
        self._doublings += doublings
        self._spans = {number: spans[0] for number, spans in groups.items()}
        for merged, *others in groups.values():
            for span in others:
                merged.high, merged.time = span.high, span.time
                for rank, bucket in span.buckets.items():
                    if (merged_bucket := merged.buckets.setdefault(rank, bucket)) is not bucket:
                        _merge_bucket(merged_bucket, bucket)

    def get_band(self) -> Band:
        """Return the metric over all ranks."""
        if not self._spans:
            return Band()
        spans, current = [span for _, span in sorted(self._spans.items())], self.current_ranks or self.series
        ranked = sorted(self.series.items())
        newest = [(series.last[2], rank) for rank, series in ranked if series.last and rank in current]
        start, end, last = spans[0].low, spans[-1].high, _average([value for value, _ in newest])
        rows = [_build_row(span) for span in spans]
        if start < rows[0].step:  # the first bucket has several steps
            mean = _average([series.first[2] for _, series in ranked if series.first and series.first[0] == start])
            rows.insert(0, replace(rows[0], step=start, mean=mean if mean is None or math.isfinite(mean) else None))
        if last is not None and math.isfinite(last):
            # End the curve at the last step with the mean of the newest values; some ranks may be at earlier steps.
            if rows[-1].step == end:
                rows.pop()
            (low, low_rank), (high, high_rank) = min(newest), max((value, -rank) for value, rank in newest)
            rows.append(Row(end, spans[-1].time, _clamp(last, low, high), low, low_rank, high, -high_rank))
        markers = [marker for marker in map(_build_marker, spans) if marker is not None]
        return Band(rows, markers, [rank for rank, _ in ranked], self.count, last, end)

    def get_curves(self, max_points: int = MAX_POINTS) -> list[RankCurve]:
        """Return the curve of each rank with at most ``max_points`` points (3 or more)."""
        _, groups = self._group_spans(max_points - 2)  # plus the exact first and last point
        return [_build_curve(rank, series, groups.values()) for rank, series in sorted(self.series.items())]


def _build_row(span: _Span) -> Row:
    middle, buckets = span.low / 2 + span.high / 2, sorted(span.buckets.items())
    means = [(_compute_mean(bucket), rank) for rank, bucket in buckets if bucket[_COUNT]]
    if not means:
        return Row(middle, span.time, None)
    lows, highs = means, [(mean, -rank) for mean, rank in means]
    if span.low < span.high:
        lows = [(bucket[_LOW], rank) for rank, bucket in buckets]
        highs = [(bucket[_HIGH], -rank) for rank, bucket in buckets]
    (low, low_rank), (high, high_rank) = min(lows), max(highs)
    # A rank without a finite value here makes a gap.
    mean = _clamp(sum(mean for mean, _ in means) / len(means), low, high) if len(means) == len(buckets) else None
    return Row(middle, span.time, mean, low, low_rank, high, -high_rank)


def _build_marker(span: _Span) -> NonFiniteMarker | None:
    bad = {rank: bucket for rank, bucket in sorted(span.buckets.items()) if bucket[_BAD_STEP] < math.inf}
    if not bad:
        return None
    kinds = sorted({repr(bucket[_BAD_VALUE]) for bucket in bad.values()}, reverse=True)
    return NonFiniteMarker(min(bucket[_BAD_STEP] for bucket in bad.values()), tuple(kinds), tuple(bad))


def _build_curve(rank: int, series: _Series, groups: Iterable[Sequence[_Span]]) -> RankCurve:
    first, last = series.first, series.last
    points: list[tuple[float, float | None, float]] = []
    for group in groups:
        buckets = [(span, span.buckets[rank]) for span in group if rank in span.buckets]
        finite = [(span, bucket) for span, bucket in buckets if bucket[_COUNT]]
        if finite:
            merged = finite[0][1][:]
            for _, bucket in finite[1:]:
                _merge_bucket(merged, bucket)
            step = finite[0][0].low / 2 + finite[-1][0].high / 2
            points.append((step, _compute_mean(merged), finite[-1][0].time))
        elif buckets:
            points.append((buckets[0][0].low, None, buckets[0][0].time))
    if first is not None and math.isfinite(first[2]) and first[0] < points[0][0]:
        points.insert(0, (first[0], first[2], first[1]))
    if last is not None and math.isfinite(last[2]) and last[0] >= points[-1][0]:
        points[len(points) - (last[0] == points[-1][0]) :] = [(last[0], last[2], last[1])]
    steps, values, times = map(list, zip(*points, strict=True)) if points else ([], [], [])
    return RankCurve(rank, steps, values, times, series.count, last[2] if last is not None else None)


class MetricStore:
    """All curves of a job, by metric name, in order of first report."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def apply(self, event: Event) -> None:
        """Add an event of type metric, metric_source or restart; ignore malformed events and other types.

        Reports at and after the first repeated step are removed after a restart and when a rank replaces its reports.
        Metrics parsed from the output are removed when ranks report them directly.
        """
        type_ = event.get("type")
        if type_ == "metric":
            try:
                self._add_report(event)
            except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
                return
        elif type_ == "restart":
            for metric in self.metrics.values():
                metric.current_ranks = set()
        elif type_ == "metric_source" and not event.get("from_output"):
            for name in event.get("names") or ():
                self.metrics.pop(name, None)

    def _add_report(self, event: Event) -> None:
        rank, step, time = int(event["rank"]), float(event["step"]), float(event["t"])
        if not (abs(step) <= MAX_STEP and math.isfinite(time)):
            return
        for name, value in event["values"].items():
            metric = self.metrics.get(name)
            if metric is None:
                if len(self.metrics) >= MAX_METRICS:
                    continue
                metric = self.metrics[name] = Metric()
            if event.get("replace"):
                metric.remove_from(rank, step)
            metric.add(rank, step, float(value), time, int(event.get("reports", 1)))

    def get(self, name: str) -> Metric:
        """Return a metric; an unknown name gives an empty one."""
        return self.metrics.get(name) or Metric()


@dataclass(frozen=True, slots=True)
class SourceJob:
    """The job that a job was resumed from. ``step`` is where it was resumed, or None if it was resumed from its end."""

    curves: MetricStore
    name: str
    step: float | None = None


def build_figure(
    store: MetricStore, metric: str, *, each_rank: bool = False, log: bool = False, source_job: SourceJob | None = None
) -> dict[str, Any]:
    """Return the plotly figure of ``job.figure()`` as ``{"data": [...], "layout": {...}}``; web pages draw their own.

    It shows the mean over ranks with a band from minimum to maximum, or one line per rank; the mean of ``source_job``
    is grey. Only the title contains user text. It is escaped, because plotly renders markup.
    """

    def get_means(band: Band) -> dict[str, Any]:
        return {"x": [row.step for row in band.rows], "y": [row.mean for row in band.rows]}

    band, curves = store.get(metric).get_band(), store.get(metric).get_curves() if each_rank else []
    finite = [row for row in band.rows if row.low is not None]
    x, has_band = [row.step for row in finite], any(row.low != row.high for row in finite)
    edge = {"x": x, "line": {"width": 0}, "hoverinfo": "skip", "visible": has_band}
    fill = {"fill": "tonexty", "fillcolor": "rgba(25,118,210,0.22)"}
    traces: list[dict[str, Any]] = [
        {"name": "min", "y": [row.low for row in finite], "showlegend": False, **edge},
        {"name": "min to max", "y": [row.high for row in finite], **edge, **fill},
        *({"name": f"rank {curve.rank}", "x": curve.steps, "y": curve.values} for curve in curves),
    ]
    if not curves:
        name = f"mean of {len(band.ranks)}" if len(band.ranks) > 1 else "mean"
        traces.append({"name": name, **get_means(band)})
    if source_job is not None and (source_band := source_job.curves.get(metric).get_band()).rows:
        traces.append({"name": source_job.name, **get_means(source_band), "line": {"color": "grey", "width": 1}})
    layout = {
        "title": {"text": html.escape(metric)},
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"type": "log" if log else "linear"},
        "hovermode": "x unified",
    }
    return {"data": [{"type": "scatter", "mode": "lines", **trace} for trace in traces], "layout": layout}

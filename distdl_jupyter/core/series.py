"""The curves of a job: metric events in bounded series, read as a band over ranks or as a line per rank.

Call ``SeriesBook().apply(event)`` for each event in order; it takes about a microsecond per value. ``band(name)`` and
``lines(name)`` take a few milliseconds for any number of points.

* A bucket covers the steps ``i * 2**k <= step < (i + 1) * 2**k`` of all ranks of a metric. At first ``k`` is so low
  that every point has a separate bucket; ``k`` grows (widths double) when there are too many buckets. It is always the
  smallest ``k`` that fits, so the order of the points does not matter.
* A bucket has the exact lowest and highest value of each rank, their count and their sum.
* After a restart, points from the first repeated step on are removed by whole buckets; the bucket that contains this
  step is kept if it has earlier points.
* NaN and inf are excluded from means and extrema; a bucket has the first step with one of them.
"""

from __future__ import annotations

import html
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distdl_jupyter.core.events import Event
from distdl_jupyter.core.humanize import listing, ranks

#: Maximum number of metrics: names that contain the step would otherwise fill the memory.
MAX_METRICS = 500
#: Steps above this and non-finite steps are ignored; nanoseconds since the epoch are below it.
MAX_STEP = 1e21
#: Maximum points of a line; maximum buckets of a metric, without the exact first and last point.
MAX_POINTS, MAX_BUCKETS = 1000, 998
#: Maximum product of buckets and ranks of a metric, and the number of buckets that is always allowed.
_MAX_CELLS = 64_000
_MIN_BUCKETS = 128
#: The first buckets are 1 / 2**20 wide, so steps that differ by a millionth are distinct.
_RESOLUTION = 2.0**20
#: The kinds of values that are not finite, as bits.
_KINDS = {1: "nan", 2: "inf", 4: "-inf"}


# what is read -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Point:
    """One reported value; ``time`` in epoch seconds."""

    step: float
    time: float
    value: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A bucket with non-finite values: the first such step, their kinds (nan, inf, -inf), the ranks in order."""

    step: float
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket over all ranks.

    ``step`` is the middle of the bucket's steps, ``time`` (epoch seconds) the time of its highest step. ``mean`` is the
    mean over ranks of each rank's mean; None (a gap) if a rank reported only non-finite values. ``low`` and ``high``
    are the exact extrema of all finite values, with the lowest rank that reached them; None without such values. In a
    bucket with a single step they are the extrema of the ranks' means, because several values of one rank at one step
    are not a band.
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

    ``last`` is the mean of the ranks' newest values at ``last_step``, which may be nan or inf; None without values. It
    excludes ranks that have not reported since a restart. ``core.view.MetricView`` and the last row match it.
    """

    rows: list[Row] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    last: float | None = None
    last_step: float = 0.0


@dataclass(slots=True)
class RankCurve:
    """One rank's curve: at most 1,000 points; a value of None is a gap.

    As long as every bucket has one value, the points are all values. Later, a point is a bucket's mean at the middle of
    its steps. The first and last point are always exact.
    """

    rank: int
    steps: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    count: int = 0
    last: float | None = None


# points in buckets ------------------------------------------------------------------------------

#: Indices in the bucket of one rank: count, sum, lowest, highest and first step of the finite values; the kinds of
#: other values as bits, and the first step with one.
_COUNT, _TOTAL, _LOW, _HIGH, _STEP, _BAD_KINDS, _BAD_STEP = range(7)
_WIDTH = 7
_EMPTY = array("d", (0, 0, math.inf, -math.inf, math.inf, 0, math.inf))


def new_bucket() -> array[float]:
    """Return an empty bucket."""
    return _EMPTY[:]


def add(bucket: array[float], step: float, value: float, offset: int = 0) -> None:
    """Add one value to the bucket that begins at ``offset``."""
    if not math.isfinite(value):
        kind = 1 if value != value else 2 if value > 0 else 4
        bucket[offset + _BAD_KINDS] = int(bucket[offset + _BAD_KINDS]) | kind
        bucket[offset + _BAD_STEP] = min(bucket[offset + _BAD_STEP], step)
        return
    bucket[offset] += 1
    bucket[offset + _TOTAL] += value
    if value < bucket[offset + _LOW]:
        bucket[offset + _LOW] = value
    if value > bucket[offset + _HIGH]:
        bucket[offset + _HIGH] = value
    if step < bucket[offset + _STEP]:
        bucket[offset + _STEP] = step


def _merge(bucket: array[float], offset: int, other: Sequence[float]) -> None:
    """Add the content of another bucket to the one that begins at ``offset``."""
    count, total, low, high, step, kinds, bad_step = other
    bucket[offset] += count
    bucket[offset + _TOTAL] += total
    bucket[offset + _LOW] = min(bucket[offset + _LOW], low)
    bucket[offset + _HIGH] = max(bucket[offset + _HIGH], high)
    bucket[offset + _STEP] = min(bucket[offset + _STEP], step)
    bucket[offset + _BAD_KINDS] = int(bucket[offset + _BAD_KINDS]) | int(kinds)
    bucket[offset + _BAD_STEP] = min(bucket[offset + _BAD_STEP], bad_step)


def _mean_of(bucket: array[float], offset: int = 0) -> float:
    return _clamp(bucket[offset + _TOTAL] / bucket[offset], bucket[offset + _LOW], bucket[offset + _HIGH])


def _clamp(mean: float, low: float, high: float) -> float:
    """Limit a mean to the extrema, which rounding may exceed; if the sum overflowed, return their middle."""
    return min(high, max(low, mean)) if math.isfinite(mean) else low / 2 + high / 2


def _mean(values: Sequence[float]) -> float | None:
    return sum(value / len(values) for value in values) if values else None


@dataclass(slots=True)
class _Span:
    """The lowest and the highest step of a bucket over all ranks, and the latest time at the highest step."""

    low: float
    high: float
    time: float

    @property
    def middle(self) -> float:
        return self.low / 2 + self.high / 2


@dataclass(slots=True)
class _Series:
    """One metric of one rank: the exact count, the first and last point, and all buckets in one array."""

    cells: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    first: Point | None = None
    last: Point | None = None

    def count_point(self, step: float, time: float, value: float, points: int) -> None:
        """Count points up to the given one, and keep it if it is the first or the last one."""
        self.count += points
        last = self.last
        if last is not None and step > last.step:
            last.step, last.time, last.value = step, time, value
            return
        if self.first is None or (step, time) < (self.first.step, self.first.time):
            self.first = Point(step, time, value)
        if last is None or (step, time) >= (last.step, last.time):
            self.last = Point(step, time, value)

    def make_bucket(self, slot: int) -> int:
        """Allocate the bucket of a slot if it is new, and return its index in ``cells``."""
        offset = slot * _WIDTH
        if offset >= len(self.cells):
            self.cells.extend(_EMPTY * (slot + 1 - len(self.cells) // _WIDTH))
        return offset

    def forget(self, slots: Iterable[int], step: float) -> None:
        """Clear buckets, and the first and last point if they are at ``step`` or later."""
        for slot in slots:
            offset = self.make_bucket(slot)
            self.cells[offset : offset + _WIDTH] = _EMPTY
        self.first = self.first if self.first is not None and self.first.step < step else None
        self.last = self.last if self.last is not None and self.last.step < step else None


@dataclass(slots=True, eq=False)
class Metric:
    """One metric of a job: the series of its ranks in common buckets."""

    series: dict[int, _Series] = field(default_factory=dict)
    #: Number of points of all ranks.
    count: int = 0
    _max_buckets: int = field(default_factory=lambda: MAX_BUCKETS)
    #: The steps of each bucket, and its slot in the series, by its number; series may also have deleted buckets.
    _spans: dict[int, _Span] = field(default_factory=dict)
    _slots: dict[int, int] = field(default_factory=dict)
    #: How many times the width of the buckets has doubled.
    _doublings: int = 0
    #: The ranks that have reported since the last restart (None without one), and the first step reported after it.
    _current_ranks: set[int] | None = None
    _repeated_from: float = math.inf

    @property
    def size(self) -> int:
        """The number of buckets of all series."""
        return len(self._spans) * len(self.series)

    def restart(self) -> None:
        """Let later points replace those of the same and later steps."""
        self._current_ranks = set()

    def add(
        self, rank: int, step: float, value: float, time: float, folded: Sequence[float] = (), points: int = 1
    ) -> None:
        """Add one point of one rank. ``step`` and ``time`` must be finite.

        It may be the last of several ``points`` in one bucket, ``folded``, if ``extends`` has returned True for them.
        """
        if self._current_ranks is not None and rank not in self._current_ranks:
            self._drop_repeated(rank, step, self._current_ranks)
        series = self.series.get(rank)
        if series is None:
            series = self.series[rank] = _Series()
            self._max_buckets = max(_MIN_BUCKETS, min(MAX_BUCKETS, _MAX_CELLS // len(self.series)))
        self.count += points
        series.count_point(step, time, value, points)
        number = self._bucket_number(step)
        span = self._spans.get(number)
        if span is None:
            self._spans[number] = _Span(step, step, time)
            slot = self._slots.setdefault(number, len(self._slots))
        else:
            slot = self._slots[number]
            if (step, time) > (span.high, span.time):
                span.high, span.time = step, time
            elif step < span.low:
                span.low = step
        offset = slot * _WIDTH
        if offset >= len(series.cells):
            series.make_bucket(slot)
        if folded:
            _merge(series.cells, offset, [*map(float, folded)])
        else:
            add(series.cells, step, value, offset)
        if len(self._spans) > self._max_buckets:
            self._coarsen()

    def _bucket_number(self, step: float) -> int:
        # Multiplying by ``_RESOLUTION`` is exact; a smaller factor would round the smallest steps to 0.
        return math.floor(step * _RESOLUTION) >> self._doublings

    def extends(self, rank: int, step: float) -> bool:
        """Return whether a point belongs to the bucket of the rank's last point, and is not before that point."""
        series = self.series.get(rank)
        if series is None or series.last is None or not self._is_current(rank):
            return False
        return step >= series.last.step and self._bucket_number(step) == self._bucket_number(series.last.step)

    def _is_current(self, rank: int) -> bool:
        return self._current_ranks is None or rank in self._current_ranks

    def _drop_repeated(self, rank: int, step: float, current_ranks: set[int]) -> None:
        """Remove the points that a rank repeats after a restart; the first rank to report decides for all ranks."""
        if not current_ranks:
            self._repeated_from = step
            later = self._slots_from(step)
            for series in self.series.values():
                series.forget(later.values(), step)
            for number in later:
                del self._spans[number]
            for span in self._spans.values():
                span.high = min(span.high, step)
        elif step < self._repeated_from:
            self.forget_from(rank, step)
        current_ranks.add(rank)

    def forget_from(self, rank: int, step: float) -> None:
        """Remove the reports of one rank for this step and later ones."""
        if rank in self.series:
            self.series[rank].forget(self._slots_from(step).values(), step)

    def _slots_from(self, step: float) -> dict[int, int]:
        """Return the slots of the buckets that begin at a step or later."""
        return {number: self._slots[number] for number, span in self._spans.items() if span.low >= step}

    def _group_buckets(self, limit: int) -> tuple[int, dict[int, list[int]]]:
        """Return the buckets in order of steps, in at most ``limit`` groups of the smallest possible width.

        The first value is how many times the current width must be doubled for that.
        """
        doublings = 0
        while len({number >> doublings for number in self._spans}) > limit:
            doublings += 1
        groups: dict[int, list[int]] = {}
        for number in sorted(self._spans):
            groups.setdefault(number >> doublings, []).append(number)
        return doublings, groups

    def _coarsen(self) -> None:
        """Merge buckets into wider ones."""
        doublings, groups = self._group_buckets(self._max_buckets)
        self._doublings += doublings
        spans, slots = self._spans, self._slots
        self._spans = {}
        for new_number, numbers in groups.items():
            merged = [spans[number] for number in numbers]
            last = max(merged, key=lambda span: (span.high, span.time))
            self._spans[new_number] = _Span(min(span.low for span in merged), last.high, last.time)
        self._slots = {new_number: slot for slot, new_number in enumerate(groups)}
        for series in self.series.values():
            cells, series.cells = series.cells, array("d")
            for slot, numbers in enumerate(groups.values()):
                offset = series.make_bucket(slot)
                for start in (slots[number] * _WIDTH for number in numbers):
                    if start < len(cells):
                        _merge(series.cells, offset, cells[start : start + _WIDTH])

    # ---- curves from buckets ----

    def _sorted_series(self) -> list[tuple[int, _Series]]:
        """Return (rank, series) in order of ranks; every series has all buckets."""
        for series in self.series.values():
            series.make_bucket(len(self._slots) - 1)
        return sorted(self.series.items())

    def band(self) -> Band:
        """Return the metric over all ranks."""
        ranked = self._sorted_series()
        if not ranked or not self._spans:
            return Band()
        spans, cells = sorted(self._spans.items()), [(rank, series.cells) for rank, series in ranked]
        current = self._current_ranks or self.series
        newest = [(series.last.value, rank) for rank, series in ranked if series.last and rank in current]
        rows = [_build_row(span, self._slots[number] * _WIDTH, cells) for number, span in spans]
        start, end = min(span.low for _, span in spans), max(span.high for _, span in spans)
        last = _mean([value for value, _ in newest])
        if len(rows) > 1 and start < rows[0].step:  # the first bucket has several steps
            mean = _mean([series.first.value for _, series in ranked if series.first and series.first.step == start])
            rows.insert(0, replace(rows[0], step=start, mean=mean if mean is None or math.isfinite(mean) else None))
        if last is not None and math.isfinite(last):
            # End the curve at the last step with the mean of the newest values; some ranks may be at earlier steps.
            lows = highs = [(value, rank) for value, rank in newest if math.isfinite(value)]
            row = rows.pop()
            if row.step < end and rows:
                rows.append(row)
            if row.step != end and row.low is not None and row.high is not None:
                lows, highs = [*lows, (row.low, row.low_rank or 0)], [*highs, (row.high, row.high_rank or 0)]
            low, low_rank = min(lows)
            high, high_rank = max(highs, key=lambda pair: (pair[0], -pair[1]))
            rows.append(Row(end, row.time, _clamp(last, low, high), low, low_rank, high, high_rank))
        return Band(rows, self._find_marks(cells), [rank for rank, _ in ranked], self.count, last, end)

    def lines(self, max_points: int) -> list[RankCurve]:
        """Return the curve of each rank with at most ``max_points`` points (3 or more)."""
        _, groups = self._group_buckets(max_points - 2)  # plus the exact first and last point
        return [self._build_curve(rank, series, groups.values()) for rank, series in self._sorted_series()]

    def _build_curve(self, rank: int, series: _Series, groups: Iterable[Sequence[int]]) -> RankCurve:
        cells, first, last = series.cells, series.first, series.last
        points: list[tuple[float, float | None, float]] = []
        for group in groups:
            buckets = [(self._spans[number], self._slots[number] * _WIDTH) for number in group]
            finite = [(span, offset) for span, offset in buckets if cells[offset]]
            if finite:
                merged = cells[finite[0][1] : finite[0][1] + _WIDTH]
                for _, offset in finite[1:]:
                    _merge(merged, 0, cells[offset : offset + _WIDTH])
                step = merged[_STEP] if merged[_COUNT] == 1 else finite[0][0].low / 2 + finite[-1][0].high / 2
                points.append((step, _mean_of(merged), finite[-1][0].time))
            elif any(cells[offset + _BAD_KINDS] for _, offset in buckets):
                points.append((buckets[0][0].low, None, buckets[0][0].time))
        if first is not None and math.isfinite(first.value) and first.step < points[0][0]:
            points.insert(0, (first.step, first.value, first.time))
        if last is not None and math.isfinite(last.value) and last.step >= points[-1][0]:
            points[len(points) - (last.step == points[-1][0]) :] = [(last.step, last.value, last.time)]
        steps, values, times = map(list, zip(*points, strict=True)) if points else ([], [], [])
        return RankCurve(rank, steps, values, times, series.count, last.value if last is not None else None)

    def _find_marks(self, ranked: Sequence[tuple[int, array[float]]]) -> list[Mark]:
        ranked = [(rank, cells) for rank, cells in ranked if any(cells[_BAD_KINDS::_WIDTH])]
        marks = []
        for number in sorted(self._spans) if ranked else ():
            offset = self._slots[number] * _WIDTH
            bad_ranks = {rank: int(cells[offset + _BAD_KINDS]) for rank, cells in ranked if cells[offset + _BAD_KINDS]}
            if bad_ranks:
                step = min(cells[offset + _BAD_STEP] for rank, cells in ranked if rank in bad_ranks)
                kinds = tuple(name for bit, name in _KINDS.items() if any(bits & bit for bits in bad_ranks.values()))
                marks.append(Mark(step, kinds, tuple(bad_ranks)))
        return marks


def _build_row(span: _Span, offset: int, ranked: Sequence[tuple[int, array[float]]]) -> Row:
    """Return the row of the buckets that begin at ``offset``."""
    buckets = [(rank, cells) for rank, cells in ranked if cells[offset] or cells[offset + _BAD_KINDS]]
    means = [(_mean_of(cells, offset), rank) for rank, cells in buckets if cells[offset]]
    if not means:
        return Row(span.middle, span.time, None)
    lows, highs = means, [(mean, -rank) for mean, rank in means]
    if span.low < span.high:
        lows = [(cells[offset + _LOW], rank) for rank, cells in buckets]
        highs = [(cells[offset + _HIGH], -rank) for rank, cells in buckets]
    (low, low_rank), (high, high_rank) = min(lows), max(highs)
    # A rank without a finite value here makes a gap.
    mean = _clamp(sum(mean for mean, _ in means) / len(means), low, high) if len(means) == len(buckets) else None
    return Row(span.middle, span.time, mean, low, low_rank, high, -high_rank)


class SeriesBook:
    """All curves of a job, by the name of the metric in the order of their first report."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}
        #: Names of the metrics that are parsed from the output.
        self.output_metrics: set[str] = set()

    @property
    def size(self) -> int:
        """The number of buckets of all series of all metrics."""
        return sum(metric.size for metric in self.metrics.values())

    def apply(self, event: Event) -> None:
        """Add an event of type metric, metric_source or restart; ignore malformed events and other types.

        Reports from the first repeated step on are removed after a restart, and when a rank replaces its reports.
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
                metric.restart()
        elif type_ == "metric_source" and event.get("from_output"):
            self.output_metrics.update(event.get("names") or ())
        elif type_ == "metric_source":
            for name in event.get("names") or ():
                self.output_metrics.discard(name)
                self.metrics.pop(name, None)

    def _add_report(self, event: Event) -> None:
        rank, step, time = int(event["rank"]), float(event["step"]), float(event["t"])
        if not (abs(step) <= MAX_STEP and math.isfinite(time)):
            return
        folded = event.get("folded")
        for number, (name, value) in enumerate(event["values"].items()):
            metric = self.metrics.get(name)
            if metric is None:
                if len(self.metrics) >= MAX_METRICS:
                    continue
                metric = self.metrics[name] = Metric()
            if event.get("replace"):
                metric.forget_from(rank, step)
            if folded is None:
                metric.add(rank, step, float(value), time)
            else:
                metric.add(rank, step, float(value), time, folded[number], int(event["reports"]))

    def extends(self, rank: int, step: float, names: Iterable[str]) -> bool:
        """Return whether a report of these metrics can be merged with the previous one without changing a curve.

        This requires that each point belongs to the bucket of the rank's last point and is not before that point.
        """
        metrics = self.metrics
        return abs(step) <= MAX_STEP and all(name in metrics and metrics[name].extends(rank, step) for name in names)

    @property
    def names(self) -> list[str]:
        """Names of all metrics in the order of their first report."""
        return list(self.metrics)

    def count(self, name: str) -> int:
        """Return the number of points of a metric over all ranks; views redraw when it changes."""
        return self.metrics[name].count if name in self.metrics else 0

    def band(self, name: str) -> Band:
        """Return the metric over all ranks; an unknown name gives an empty band."""
        return self.metrics[name].band() if name in self.metrics else Band()

    def lines(self, name: str, max_points: int = MAX_POINTS) -> list[RankCurve]:
        """Return the curve of each rank with at most ``max_points`` points (3 or more); [] for an unknown name."""
        return self.metrics[name].lines(max_points) if name in self.metrics else []


# the figure of ``job.figure()``; pages draw theirs themselves --------------------------------------


@dataclass(frozen=True, slots=True)
class Earlier:
    """The job from which this job was forked: its curves, its name and the step of the fork (None: its end)."""

    book: SeriesBook
    name: str
    step: float | None = None


def figure(
    book: SeriesBook, metric: str, *, each_rank: bool = False, log: bool = False, earlier: Earlier | None = None
) -> dict[str, Any]:
    """Return one metric over steps as ``{"data": [...], "layout": {...}}``; an unknown metric gives an empty plot.

    The plotly figure shows the mean over ranks with a band from minimum to maximum, or one line per rank; the mean of
    the job ``earlier`` is grey. Only the title contains user text. It is escaped, because plotly renders markup.
    """
    band, name = book.band(metric), "mean"
    if len(band.ranks) > 1:
        name = f"mean of {len(band.ranks)}"
    finite = [row for row in band.rows if row.low is not None]
    x, has_band = [row.step for row in finite], any(row.low != row.high for row in finite)
    edge = {"line": {"width": 0}, "hoverinfo": "skip", "visible": has_band}
    fill = {"fill": "tonexty", "fillcolor": "rgba(25,118,210,0.22)"}
    lines = [_trace(f"rank {line.rank}", line.steps, line.values) for line in book.lines(metric)] if each_rank else []
    data = [
        _trace("min", x, [row.low for row in finite], showlegend=False, **edge),
        _trace("min to max", x, [row.high for row in finite], **edge, **fill),
        *(lines or [_trace(name, [row.step for row in band.rows], [row.mean for row in band.rows])]),
    ]
    if earlier is not None and (rows := earlier.book.band(metric).rows):
        grey = {"color": "grey", "width": 1}
        data.append(_trace(earlier.name, [row.step for row in rows], [row.mean for row in rows], line=grey))
    notes = []
    if band.marks:
        first = band.marks[0]
        text = f"{listing(first.kinds)} on {ranks(first.ranks)} from step {first.step:g} on"
        top_left = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "yanchor": "bottom"}
        notes.append({"text": text, "showarrow": False, **top_left})
    layout = {
        "title": {"text": html.escape(metric)},
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"type": "log" if log else "linear"},
        "annotations": notes,
        "hovermode": "x unified",
    }
    return {"data": data, "layout": layout}


def _trace(name: str, x: Sequence[float], y: Sequence[float | None], **style: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **style}

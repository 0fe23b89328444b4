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

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distdl_jupyter.core.events import Event

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
_FINEST = 2.0**20
_NAN, _INF, _MINUS_INF = 1, 2, 4
_KINDS = ((_NAN, "nan"), (_INF, "inf"), (_MINUS_INF, "-inf"))


# points in buckets ------------------------------------------------------------------------------


@dataclass(slots=True)
class Point:
    """One reported value; ``time`` in epoch seconds."""

    step: float
    time: float
    value: float

    @property
    def order(self) -> tuple[float, float]:
        """The sort key: step, then time; equal points stay in order of arrival."""
        return (self.step, self.time)


@dataclass(slots=True)
class Span:
    """The lowest and the highest step of a bucket over all ranks, and the latest time at the highest step."""

    low: float
    high: float
    time: float

    def merge(self, low: float, high: float, time: float) -> None:
        """Add steps."""
        if (high, time) > (self.high, self.time):
            self.high, self.time = high, time
        self.low = min(self.low, low)

    @property
    def middle(self) -> float:
        """The middle of its steps."""
        return self.low / 2 + self.high / 2


#: Indices in the bucket of one rank: count, sum, lowest, highest and first step of the finite values; the kinds of
#: other values as bits, and the first step with one.
_COUNT, _TOTAL, _LOW, _HIGH, _STEP, _KINDS_SEEN, _BAD_STEP = range(7)
_WIDTH = 7
_EMPTY = array("d", (0, 0, math.inf, -math.inf, math.inf, 0, math.inf))


def new_bucket() -> array[float]:
    """Return an empty bucket."""
    return _EMPTY[:]


def add(bucket: array[float], step: float, value: float, at: int = 0) -> None:
    """Add one value to the bucket that begins at ``at``."""
    if not math.isfinite(value):
        kind = _NAN if value != value else _INF if value > 0 else _MINUS_INF
        bucket[at + _KINDS_SEEN] = int(bucket[at + _KINDS_SEEN]) | kind
        bucket[at + _BAD_STEP] = min(bucket[at + _BAD_STEP], step)
        return
    bucket[at] += 1
    bucket[at + _TOTAL] += value
    if value < bucket[at + _LOW]:
        bucket[at + _LOW] = value
    if value > bucket[at + _HIGH]:
        bucket[at + _HIGH] = value
    if step < bucket[at + _STEP]:
        bucket[at + _STEP] = step


def _merge(bucket: array[float], at: int, other: Sequence[float]) -> None:
    """Add the content of another bucket to the one that begins at ``at``."""
    count, total, low, high, step, kinds, bad_step = other
    bucket[at] += count
    bucket[at + _TOTAL] += total
    bucket[at + _LOW] = min(bucket[at + _LOW], low)
    bucket[at + _HIGH] = max(bucket[at + _HIGH], high)
    bucket[at + _STEP] = min(bucket[at + _STEP], step)
    bucket[at + _KINDS_SEEN] = int(bucket[at + _KINDS_SEEN]) | int(kinds)
    bucket[at + _BAD_STEP] = min(bucket[at + _BAD_STEP], bad_step)


def _mean_of(bucket: array[float], at: int = 0) -> float:
    return _within(bucket[at + _TOTAL] / bucket[at], bucket[at + _LOW], bucket[at + _HIGH])


class Series:
    """One metric of one rank: the exact count, the first and last point, and all buckets in one array."""

    __slots__ = ("cells", "count", "first", "last")

    def __init__(self) -> None:
        self.cells = array("d")
        self.count = 0
        self.first: Point | None = None
        self.last: Point | None = None

    def make_bucket(self, slot: int) -> int:
        """Allocate the bucket of a slot if it is new, and return its index in ``cells``."""
        at = slot * _WIDTH
        if at >= len(self.cells):
            self.cells.extend(_EMPTY * (slot + 1 - len(self.cells) // _WIDTH))
        return at

    def keep_ends(self, step: float, time: float, value: float) -> None:
        """Store a point if it is the first or the last one."""
        if self.last is not None and step > self.last.step:
            self.last.step, self.last.time, self.last.value = step, time, value
            return
        point = Point(step, time, value)
        if self.first is None or point.order < self.first.order:
            self.first = replace(point)
        if self.last is None or point.order >= self.last.order:
            self.last = point

    def forget(self, slots: Iterable[int], step: float) -> None:
        """Clear buckets, and the first and last point if they are at ``step`` or later."""
        for slot in slots:
            at = self.make_bucket(slot)
            self.cells[at : at + _WIDTH] = _EMPTY
        self.first = self.first if self.first is not None and self.first.step < step else None
        self.last = self.last if self.last is not None and self.last.step < step else None


class Metric:
    """One metric of a job: the series of its ranks in common buckets."""

    __slots__ = ("_cut", "_doublings", "_restarted", "count", "limit", "series", "slots", "spans")

    def __init__(self) -> None:
        #: The steps of each bucket, and its slot in the series, by its number; series may also have deleted buckets.
        self.spans: dict[int, Span] = {}
        self.slots: dict[int, int] = {}
        self.series: dict[int, Series] = {}
        self.limit = MAX_BUCKETS
        #: Number of points of all ranks.
        self.count = 0
        #: How often the width of the buckets has doubled.
        self._doublings = 0
        #: The ranks that have reported since the last restart (None without one), and the first step reported after it.
        self._restarted: set[int] | None = None
        self._cut = math.inf

    def restart(self) -> None:
        """Let later points replace those of the same and later steps."""
        self._restarted = set()

    def add(self, rank: int, step: float, value: float, time: float) -> None:
        """Add one point of one rank. ``step`` and ``time`` must be finite."""
        if self._restarted is not None and rank not in self._restarted:
            self._go_back(rank, step, self._restarted)
        series, at = self._count(rank, step, value, time, points=1)
        add(series.cells, step, value, at)
        if len(self.spans) > self.limit:
            self._coarsen()

    def add_folded(self, rank: int, points: int, last: Point, folded: Sequence[float]) -> None:
        """Add several points of one rank in one bucket, for which ``extends`` returned true."""
        series, at = self._count(rank, last.step, last.value, last.time, points=points)
        _merge(series.cells, at, [*map(float, folded)])

    def _count(self, rank: int, step: float, value: float, time: float, *, points: int) -> tuple[Series, int]:
        """Count ``points`` of a rank up to the given last one; return the series and the index of its bucket."""
        series = self.series.get(rank)
        if series is None:
            series = self.series[rank] = Series()
            self.limit = max(_MIN_BUCKETS, min(MAX_BUCKETS, _MAX_CELLS // len(self.series)))
        self.count += points
        series.count += points
        series.keep_ends(step, time, value)
        number = self._number(step)
        span = self.spans.get(number)
        if span is None:
            self.spans[number] = Span(step, step, time)
            slot = self.slots.setdefault(number, len(self.slots))
        else:
            slot = self.slots[number]
            if (step, time) > (span.high, span.time):
                span.high, span.time = step, time
            elif step < span.low:
                span.low = step
        at = slot * _WIDTH
        return series, at if at < len(series.cells) else series.make_bucket(slot)

    def _number(self, step: float) -> int:
        # Multiplying by ``_FINEST`` is exact; a smaller factor would round the smallest steps to 0.
        return math.floor(step * _FINEST) >> self._doublings

    def extends(self, rank: int, step: float) -> bool:
        """Return whether a point belongs to the bucket of the rank's last point, and is not before that point."""
        series = self.series.get(rank)
        if series is None or series.last is None or (self._restarted is not None and rank not in self._restarted):
            return False
        return step >= series.last.step and self._number(step) == self._number(series.last.step)

    def _go_back(self, rank: int, step: float, restarted: set[int]) -> None:
        """Remove the points that a rank repeats after a restart; the first rank to report decides for all ranks."""
        if not restarted:
            self._cut = step
            later = self._from(step)
            for series in self.series.values():
                series.forget(later.values(), step)
            for number in later:
                del self.spans[number]
            for span in self.spans.values():
                span.high = min(span.high, step)
        elif step < self._cut:
            self.forget_from(rank, step)
        restarted.add(rank)

    def forget_from(self, rank: int, step: float) -> None:
        """Remove the reports of one rank for this step and later ones."""
        if rank in self.series:
            self.series[rank].forget(self._from(step).values(), step)

    def _from(self, step: float) -> dict[int, int]:
        """Return the slots of the buckets that begin at a step or later."""
        return {number: self.slots[number] for number, span in self.spans.items() if span.low >= step}

    def is_current(self, rank: int) -> bool:
        """Return whether a rank has reported since the last restart, or whether no rank has."""
        return not self._restarted or rank in self._restarted

    def ranked(self) -> list[tuple[int, Series]]:
        """Return (rank, series) in order of ranks; every series has all buckets."""
        for series in self.series.values():
            series.make_bucket(len(self.slots) - 1)
        return sorted(self.series.items())

    def groups(self, limit: int) -> dict[int, list[int]]:
        """Return the buckets in order of steps, in at most ``limit`` groups of the smallest possible width."""
        doublings = self._doublings_to(limit)
        groups: dict[int, list[int]] = {}
        for number in sorted(self.spans):
            groups.setdefault(number >> doublings, []).append(number)
        return groups

    def _doublings_to(self, limit: int) -> int:
        doublings = 0
        while len({number >> doublings for number in self.spans}) > limit:
            doublings += 1
        return doublings

    def _coarsen(self) -> None:
        """Merge buckets into wider ones."""
        groups, slots = self.groups(self.limit), self.slots
        self._doublings += self._doublings_to(self.limit)
        spans, self.spans = self.spans, {}
        for wide, numbers in groups.items():
            span = self.spans[wide] = spans[numbers[0]]
            for number in numbers[1:]:
                span.merge(spans[number].low, spans[number].high, spans[number].time)
        self.slots = {wide: slot for slot, wide in enumerate(groups)}
        for series in self.series.values():
            cells, series.cells = series.cells, array("d")
            for slot, numbers in enumerate(groups.values()):
                at = series.make_bucket(slot)
                for first in (slots[number] * _WIDTH for number in numbers):
                    if first < len(cells):
                        _merge(series.cells, at, cells[first : first + _WIDTH])


class SeriesBook:
    """All curves of a job, by the name of the metric."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        #: Names of the metrics that are parsed from the output.
        self.output_metrics: set[str] = set()

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics in the order of their first report."""
        return self._metrics

    @property
    def size(self) -> int:
        """The number of buckets of all series of all metrics."""
        return sum(len(metric.spans) * len(metric.series) for metric in self._metrics.values())

    def apply(self, event: Event) -> None:
        """Add an event of type metric, metric_source or restart; ignore malformed events and other types.

        Reports from the first repeated step on are removed after a restart, and when a rank reports a step ``again``.
        Metrics parsed from the output are removed when ranks report them directly.
        """
        if event.get("type") != "metric":
            self._begin_anew(event)
            return
        try:
            rank, step, time = int(event["rank"]), float(event["step"]), float(event["t"])
            if not (abs(step) <= MAX_STEP and math.isfinite(time)):
                return
            folded = event.get("folded")
            for number, (name, value) in enumerate(event["values"].items()):
                metric = self._metrics.get(name) or self._new(name)
                if metric is None:
                    continue
                if event.get("replace"):
                    metric.forget_from(rank, step)
                if folded is None:
                    metric.add(rank, step, float(value), time)
                else:
                    metric.add_folded(rank, int(event["reports"]), Point(step, time, float(value)), folded[number])
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
            return

    def _begin_anew(self, event: Event) -> None:
        if event.get("type") == "restart":
            for known in self._metrics.values():
                known.restart()
        elif event.get("type") == "metric_source" and event.get("from_output"):
            self.output_metrics.update(event.get("names") or ())
        elif event.get("type") == "metric_source":
            for name in event.get("names") or ():
                self.output_metrics.discard(name)
                self._metrics.pop(name, None)

    def extends(self, rank: int, step: float, names: Iterable[str]) -> bool:
        """Return whether a report of these metrics can be merged with the previous one without changing a curve.

        This requires that each point belongs to the bucket of the rank's last point and is not before that point.
        """
        metrics = self._metrics
        return abs(step) <= MAX_STEP and all(name in metrics and metrics[name].extends(rank, step) for name in names)

    @property
    def names(self) -> list[str]:
        """Names of all metrics in the order of their first report."""
        return list(self._metrics)

    def count(self, name: str) -> int:
        """Return the number of points of a metric over all ranks; views redraw when it changes."""
        metric = self._metrics.get(name)
        return metric.count if metric else 0

    def series(self, name: str, rank: int) -> Series | None:
        """Return the series of one rank, None if it has not reported this metric."""
        metric = self._metrics.get(name)
        return metric.series.get(rank) if metric else None

    def band(self, name: str) -> Band:
        """Return the metric over all ranks; an unknown name gives an empty band."""
        return _band_of(self._metrics.get(name) or Metric())

    def lines(self, name: str, most: int = MAX_POINTS) -> list[RankCurve]:
        """Return the curve of each rank with at most ``most`` points (3 or more); [] for an unknown name."""
        metric = self._metrics.get(name) or Metric()
        groups = list(metric.groups(most - 2).values())  # plus the exact first and last point
        return [_curve(rank, series, metric, groups) for rank, series in metric.ranked()]

    def _new(self, name: str) -> Metric | None:
        if len(self._metrics) >= MAX_METRICS:
            return None
        metric = self._metrics[name] = Metric()
        return metric


# curves from buckets ----------------------------------------------------------------------------


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
    its steps, and ``lows`` and ``highs`` are the bucket's exact extrema. The first and last point are always exact.
    """

    rank: int
    steps: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    lows: list[float | None] = field(default_factory=list)
    highs: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    count: int = 0
    last: float | None = None


def _band_of(metric: Metric) -> Band:
    ranked = metric.ranked()
    if not ranked or not metric.spans:
        return Band()
    cells = [(rank, series.cells) for rank, series in ranked]
    newest = [(series.last.value, rank) for rank, series in ranked if series.last and metric.is_current(rank)]
    band = Band(
        rows=[_row(span, metric.slots[number] * _WIDTH, cells) for number, span in sorted(metric.spans.items())],
        marks=_marks(metric, cells),
        ranks=[rank for rank, _ in ranked],
        count=metric.count,
        last=_mean([value for value, _ in newest]),
        last_step=max(span.high for span in metric.spans.values()),
    )
    start = min(span.low for span in metric.spans.values())
    if len(band.rows) > 1 and start < band.rows[0].step:  # the first bucket holds several steps
        firsts = [series.first.value for _, series in ranked if series.first and series.first.step == start]
        band.rows.insert(0, replace(band.rows[0], step=start, mean=_finite(_mean(firsts))))
    _end_exactly(band, newest)
    return band


def _row(span: Span, at: int, ranked: Sequence[tuple[int, array[float]]]) -> Row:
    """Return the row of the buckets that begin at ``at``."""
    buckets = [(rank, cells) for rank, cells in ranked if cells[at] or cells[at + _KINDS_SEEN]]
    means = [(_mean_of(cells, at), rank) for rank, cells in buckets if cells[at]]
    if not means:
        return Row(span.middle, span.time, None)
    lows, highs = means, [(mean, -rank) for mean, rank in means]
    if span.low < span.high:
        lows = [(cells[at + _LOW], rank) for rank, cells in buckets]
        highs = [(cells[at + _HIGH], -rank) for rank, cells in buckets]
    (low, low_rank), (high, high_rank) = min(lows), max(highs)
    # A rank without a finite value here makes a gap.
    mean = _within(sum(mean for mean, _ in means) / len(means), low, high) if len(means) == len(buckets) else None
    return Row(span.middle, span.time, mean, low, low_rank, high, -high_rank)


def _within(mean: float, low: float, high: float) -> float:
    """Limit a mean to the extrema, which rounding may exceed; if the sum overflowed, return their middle."""
    return min(high, max(low, mean)) if math.isfinite(mean) else low / 2 + high / 2


def _end_exactly(band: Band, newest: list[tuple[float, int]]) -> None:
    """End the curve at the last step with the mean of the newest values; some ranks may be at earlier steps."""
    row, end = band.rows[-1], _finite(band.last)
    if end is None:
        return
    lows = highs = [(value, rank) for value, rank in newest if math.isfinite(value)]
    if row.step != band.last_step:
        lows, highs = lows + _known(row.low, row.low_rank), highs + _known(row.high, row.high_rank)
    low, low_rank = min(lows)
    high, high_rank = max(highs, key=lambda pair: (pair[0], -pair[1]))
    last = Row(band.last_step, row.time, _within(end, low, high), low, low_rank, high, high_rank)
    if row.step < band.last_step and len(band.rows) > 1:
        band.rows.append(last)
    else:
        band.rows[-1] = last


def _known(value: float | None, rank: int | None) -> list[tuple[float, int]]:
    return [] if value is None or rank is None else [(value, rank)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(value / len(values) for value in values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _marks(metric: Metric, ranked: Sequence[tuple[int, array[float]]]) -> list[Mark]:
    ranked = [(rank, cells) for rank, cells in ranked if any(cells[_KINDS_SEEN::_WIDTH])]
    marks = []
    for number in sorted(metric.spans) if ranked else ():
        at = metric.slots[number] * _WIDTH
        if bad := [(rank, cells) for rank, cells in ranked if cells[at + _KINDS_SEEN]]:
            kinds = tuple(name for bit, name in _KINDS if any(int(cells[at + _KINDS_SEEN]) & bit for _, cells in bad))
            marks.append(Mark(min(cells[at + _BAD_STEP] for _, cells in bad), kinds, tuple(rank for rank, _ in bad)))
    return marks


def _curve(rank: int, series: Series, metric: Metric, groups: Iterable[Sequence[int]]) -> RankCurve:
    spans, cells = metric.spans, series.cells
    #: Step, value, low, high and time of each point.
    points: list[tuple[float, float | None, float | None, float | None, float]] = []
    for group in groups:
        buckets = [(spans[number], metric.slots[number] * _WIDTH) for number in group]
        finite = [(span, at) for span, at in buckets if cells[at]]
        if finite:
            merged = cells[finite[0][1] : finite[0][1] + _WIDTH]
            for _, at in finite[1:]:
                _merge(merged, 0, cells[at : at + _WIDTH])
            step = merged[_STEP] if merged[_COUNT] == 1 else finite[0][0].low / 2 + finite[-1][0].high / 2
            points.append((step, _mean_of(merged), merged[_LOW], merged[_HIGH], finite[-1][0].time))
        elif any(cells[at + _KINDS_SEEN] for _, at in buckets):
            points.append((spans[group[0]].low, None, None, None, spans[group[0]].time))
    first, last = series.first, series.last
    if first is not None and math.isfinite(first.value) and first.step < points[0][0]:
        points.insert(0, (first.step, first.value, *points[0][2:4], first.time))
    if last is not None and math.isfinite(last.value) and last.step >= points[-1][0]:
        points[len(points) - (last.step == points[-1][0]) :] = [(last.step, last.value, *points[-1][2:4], last.time)]
    steps, values, lows, highs, times = map(list, zip(*points, strict=True)) if points else ([] for _ in range(5))
    marks = _marks(metric, [(rank, cells)])
    newest = last.value if last is not None else None
    return RankCurve(rank, steps, values, lows, highs, times, marks, series.count, newest)

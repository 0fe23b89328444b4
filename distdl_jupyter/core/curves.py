"""Curves read out of buckets: the band over all ranks, and the line of each rank.

Pure functions from a ``Metric`` to plain rows, some milliseconds whatever the number of points behind them. What a
curve looks like is said in ``core.figure``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from distdl_jupyter.core.buckets import INF, MINUS_INF, NAN, Grid, Metric, Series

#: Points of a line at most.
MAX_POINTS = 1000
_KINDS = ((NAN, "nan"), (INF, "inf"), (MINUS_INF, "-inf"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A bucket in which values were not finite: lowest such step, ``kinds`` of nan, inf, -inf; ranks ascending."""

    step: float
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What one bucket says over all ranks.

    ``step`` is the middle of the bucket's steps, ``time`` (epoch seconds) that of its highest step. ``mean`` is the
    mean over ranks of each rank's mean; None is a gap, because a rank reported nothing finite here. ``low`` and
    ``high`` are exact extrema over all finite values, with the lowest rank that reached them; None when there are none.
    In a bucket of a single step they are extrema of the ranks' means: values of one rank at one step make no band.
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

    ``last`` is the mean of the ranks' newest values (it may be nan or inf) at ``last_step``, None when nothing came;
    ranks that are gone since a restart are not in it. A view's metric has the same value (core.view.MetricView).
    the last row carries it.
    """

    rows: list[Row] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    last: float | None = None
    last_step: float = 0.0


@dataclass(slots=True)
class Line:
    """One rank's curve: at most 1,000 points; a value of None is a gap.

    While every bucket holds one value these are all values. Later a point is a bucket's mean at the middle of its
    steps, and ``lows`` and ``highs`` are the bucket's exact extrema. First and last point are always exact.
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

    def add(self, point: Sample, at: int | None = None) -> None:
        """Put one point in at a place, by default the end."""
        index = len(self.steps) if at is None else at
        self.steps.insert(index, point.step)
        self.values.insert(index, point.value)
        self.lows.insert(index, point.low)
        self.highs.insert(index, point.high)
        self.times.insert(index, point.time)


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of a line."""

    step: float
    time: float
    value: float | None
    low: float | None
    high: float | None


def band_of(metric: Metric) -> Band:
    """Return the metric over its ranks."""
    grid, ranked = metric.grid, metric.ranked()
    if not ranked:
        return Band()
    fold = _Fold(grid)
    for rank, series in ranked:
        fold.take(rank, series)
    newest = [(series.last.value, rank) for rank, series in ranked if series.last and metric.is_current(rank)]
    band = Band(
        rows=[fold.row(slot, grid) for slot in grid.ordered()],
        marks=_marks(grid.ordered(), ranked),
        ranks=[rank for rank, _ in ranked],
        count=metric.count,
        last=_mean([value for value, _ in newest]),
        last_step=max(grid.high_steps),
    )
    _begin_exactly(band, min(grid.low_steps), ranked)
    _end_exactly(band, newest)
    return band


def lines_of(metric: Metric, most: int = MAX_POINTS) -> list[Line]:
    """Return the line of each rank, in order of ranks, each of at most ``most`` points (from 3)."""
    groups = metric.grid.groups(most - 2)  # the exact first and last point come on top
    return [_line(rank, series, metric.grid, groups) for rank, series in metric.ranked()]


class _Fold:
    """Sums and extrema over ranks, by position in the grid."""

    def __init__(self, grid: Grid) -> None:
        size = len(grid.times)
        self.single = [low == high for low, high in zip(grid.low_steps, grid.high_steps, strict=True)]
        self.sums, self.ranks, self.gaps = [0.0] * size, [0] * size, [False] * size
        self.lows, self.low_ranks = [math.inf] * size, [0] * size
        self.highs, self.high_ranks = [-math.inf] * size, [0] * size

    def take(self, rank: int, series: Series) -> None:
        """Take one rank's series; ranks come in ascending order."""
        sums, ranks, lows, highs = self.sums, self.ranks, self.lows, self.highs
        columns = zip(series.counts, series.sums, series.lows, series.highs, strict=True)
        for slot, (count, total, lowest, highest) in enumerate(columns):
            if not count:
                continue
            mean = _within(total / count, lowest, highest)
            low, high = (mean, mean) if self.single[slot] else (lowest, highest)
            sums[slot] += mean
            ranks[slot] += 1
            if low < lows[slot]:
                lows[slot], self.low_ranks[slot] = low, rank
            if high > highs[slot]:
                highs[slot], self.high_ranks[slot] = high, rank
        for slot in series.bad:
            self.gaps[slot] = self.gaps[slot] or not series.counts[slot]

    def row(self, slot: int, grid: Grid) -> Row:
        """Return one bucket's row."""
        step = grid.low_steps[slot] / 2 + grid.high_steps[slot] / 2
        if not self.ranks[slot]:
            return Row(step, grid.times[slot], None)
        low, high = self.lows[slot], self.highs[slot]
        mean = None if self.gaps[slot] else _within(self.sums[slot] / self.ranks[slot], low, high)
        return Row(step, grid.times[slot], mean, low, self.low_ranks[slot], high, self.high_ranks[slot])


def _within(mean: float, low: float, high: float) -> float:
    """Return the mean free of rounding beyond the extrema; sums of huge values overflow, the extrema never do."""
    return min(high, max(low, mean)) if math.isfinite(mean) else low / 2 + high / 2


def _begin_exactly(band: Band, start: float, ranked: list[tuple[int, Series]]) -> None:
    """Let the curve begin at the first step, when its first bucket holds several."""
    if len(band.rows) > 1 and start < band.rows[0].step:
        firsts = [series.first.value for _, series in ranked if series.first and series.first.step == start]
        band.rows.insert(0, replace(band.rows[0], step=start, mean=_finite(_mean(firsts))))


def _end_exactly(band: Band, newest: list[tuple[float, int]]) -> None:
    """Let the curve end at the last step with the mean of the newest values, which some ranks may not have reached."""
    row, end = band.rows[-1], _finite(band.last)
    if end is None:
        return
    finite = [(value, rank) for value, rank in newest if math.isfinite(value)]
    single = row.step == band.last_step
    low, low_rank = min(finite + ([] if single else _known(row.low, row.low_rank)))
    highs = finite + ([] if single else _known(row.high, row.high_rank))
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


def _marks(ordered: Iterable[int], ranked: list[tuple[int, Series]]) -> list[Mark]:
    bad_slots: dict[int, tuple[int, float, list[int]]] = {}
    for rank, series in ranked:
        for slot, (bits, step) in series.bad.items():
            known, first, ranks = bad_slots.get(slot, (0, math.inf, []))
            bad_slots[slot] = (known | bits, min(first, step), [*ranks, rank])
    marks = []
    for slot in ordered:
        if slot in bad_slots:
            bits, step, ranks = bad_slots[slot]
            marks.append(Mark(step, tuple(kind for bit, kind in _KINDS if bits & bit), tuple(ranks)))
    return marks


def _line(rank: int, series: Series, grid: Grid, groups: list[list[int]]) -> Line:
    ordered = [slot for group in groups for slot in group]
    line = Line(rank, count=series.count, marks=_marks(ordered, [(rank, series)]))
    for group in groups:
        held = [slot for slot in group if series.has(slot)]
        if held:
            line.add(_sample(series, grid, held))
        elif any(slot in series.bad for slot in group):
            line.add(Sample(grid.low_steps[group[0]], grid.times[group[0]], None, None, None))
    _exact_line_ends(line, series)
    return line


def _sample(series: Series, grid: Grid, held: list[int]) -> Sample:
    """Return the point of some neighbouring buckets that all hold values."""
    number = sum(series.counts[slot] for slot in held)
    low, high = min(series.lows[slot] for slot in held), max(series.highs[slot] for slot in held)
    mean = _within(sum(series.sums[slot] for slot in held) / number, low, high)
    middle = grid.low_steps[held[0]] / 2 + grid.high_steps[held[-1]] / 2
    return Sample(series.low_steps[held[0]] if number == 1 else middle, grid.times[held[-1]], mean, low, high)


def _exact_line_ends(line: Line, series: Series) -> None:
    first, last = series.first, series.last
    if first is None or last is None:
        return
    line.last = last.value
    if math.isfinite(first.value) and first.step < line.steps[0]:
        line.add(Sample(first.step, first.time, first.value, line.lows[0], line.highs[0]), 0)
    if math.isfinite(last.value) and last.step > line.steps[-1]:
        line.add(Sample(last.step, last.time, last.value, line.lows[-1], line.highs[-1]))

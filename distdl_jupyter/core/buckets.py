"""Points of one metric in bounded memory: buckets of steps that grow wider as more points come.

* One ``Grid`` per metric says which steps a bucket holds; one ``Series`` per rank holds what was reported in each
  bucket. So all ranks of a metric share the bucket boundaries.
* A bucket is the steps ``i * 2**k <= step < (i + 1) * 2**k``. ``k`` begins so low that every point has a bucket of its
  own, and grows (widths double) when more buckets than allowed would be needed. It is always the smallest ``k`` that
  fits, so the order in which points come makes no difference.
* A bucket keeps the lowest and the highest value of each rank exactly, with their steps, and count and sum.
* After a restart the points of later steps than the first one that is reported again are taken away by whole buckets:
  of the one bucket in which that step lies the earlier points stay, and with them what else it held.
* NaN and inf never enter a mean or an extremum; they are remembered with their steps.

It knows steps, values and times only: no event, no figure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

#: Buckets of one metric; with its exact first and last point a line has at most 1,000 points.
MAX_BUCKETS = 998
#: A metric of many ranks gets fewer buckets: their number times the ranks stays below this, down to a minimum.
_MAX_CELLS = 64_000
_MIN_BUCKETS = 128
#: The first buckets are 1 / 2**20 wide: steps that differ by a millionth are told apart.
_FINEST = 2.0**20

NAN, INF, MINUS_INF = 1, 2, 4


@dataclass(slots=True)
class Point:
    """One reported value; ``time`` in epoch seconds."""

    step: float
    time: float
    value: float

    @property
    def order(self) -> tuple[float, float]:
        """Points are ordered by step, then time; equal ones in the order in which they come."""
        return (self.step, self.time)


class Grid:
    """The buckets of one metric: their steps and when they were reported.

    ``slots`` maps a bucket's number to its position in all columns, here and in each ``Series``.
    """

    __slots__ = ("doublings", "high_steps", "low_steps", "slots", "times")

    def __init__(self) -> None:
        #: How often the width has doubled.
        self.doublings = 0
        self.slots: dict[int, int] = {}
        self.low_steps = array("d")
        self.high_steps = array("d")
        #: Latest time at the bucket's highest step.
        self.times = array("d")

    def number(self, step: float) -> int:
        """Return the number of the step's bucket."""
        # Multiplying by the first scale is exact; a smaller one would round the tiniest steps to 0.
        return math.floor(step * _FINEST) >> self.doublings

    def slot(self, step: float, time: float) -> int:
        """Return the position of the step's bucket, making one when there is none yet."""
        number = math.floor(step * _FINEST) >> self.doublings  # as in number(), without a call
        slot = self.slots.get(number)
        if slot is None:
            return self._new(number, step, time)
        high = self.high_steps[slot]
        if step > high:
            self.high_steps[slot], self.times[slot] = step, time
        elif step == high:
            if time > self.times[slot]:
                self.times[slot] = time
        elif step < self.low_steps[slot]:
            self.low_steps[slot] = step
        return slot

    def _new(self, number: int, step: float, time: float) -> int:
        slot = self.slots[number] = len(self.times)
        self.low_steps.append(step)
        self.high_steps.append(step)
        self.times.append(time)
        return slot

    def ordered(self) -> list[int]:
        """Return the positions in order of steps."""
        return [slot for _, slot in sorted(self.slots.items())]

    def cut(self, step: float) -> list[int]:
        """Take away the buckets that begin at ``step`` or later; return the positions of those that stay, in order."""
        remaining = [(number, slot) for number, slot in self.slots.items() if self.low_steps[slot] < step]
        stay = [slot for _, slot in remaining]
        self.slots = {number: new for new, (number, _) in enumerate(remaining)}
        self.low_steps = array("d", [self.low_steps[slot] for slot in stay])
        self.high_steps = array("d", [min(self.high_steps[slot], step) for slot in stay])
        self.times = array("d", [self.times[slot] for slot in stay])
        return stay

    def groups(self, limit: int) -> list[list[int]]:
        """Return the positions in order of steps, grouped by the narrowest wider buckets that are at most ``limit``."""
        doublings = self._doublings(limit)
        groups: dict[int, list[int]] = {}
        for number, slot in sorted(self.slots.items()):
            groups.setdefault(number >> doublings, []).append(slot)
        return list(groups.values())

    def coarsen(self, limit: int) -> list[int]:
        """Double the width until at most ``limit`` buckets are left; return the new position of each old one."""
        doublings = self._doublings(limit)
        moves = [0] * len(self.times)
        old_low, old_high, old_times = self.low_steps, self.high_steps, self.times
        ordered = sorted(self.slots.items())
        self.doublings += doublings
        self.slots, self.low_steps, self.high_steps, self.times = {}, array("d"), array("d"), array("d")
        for number, slot in ordered:
            new = self.slots.get(number >> doublings)
            if new is None:
                new = self.slots[number >> doublings] = len(self.times)
                self.low_steps.append(old_low[slot])
                self.high_steps.append(old_high[slot])
                self.times.append(old_times[slot])
            else:  # in order of steps, so the later one has the higher steps
                self.high_steps[new], self.times[new] = old_high[slot], old_times[slot]
            moves[slot] = new
        return moves

    def _doublings(self, limit: int) -> int:
        doublings = 0
        while len({number >> doublings for number in self.slots}) > limit:
            doublings += 1
        return doublings


#: What a bucket of a series holds before a value came, by column.
_EMPTY = (("counts", 0), ("sums", 0.0), ("lows", math.inf), ("low_steps", math.inf), ("highs", -math.inf),
          ("high_steps", math.inf))  # fmt: skip


class Series:
    """One metric of one rank: what each bucket of the grid holds, and the exact count, first and last point."""

    __slots__ = ("bad", "count", "counts", "first", "high_steps", "highs", "last", "low_steps", "lows", "sums")

    def __init__(self) -> None:
        self.count = 0
        self.first: Point | None = None
        self.last: Point | None = None
        #: Per bucket: finite values, their sum, the extrema and the lowest steps that reached them.
        self.counts = array("q")
        self.sums = array("d")
        self.lows = array("d")
        self.low_steps = array("d")
        self.highs = array("d")
        self.high_steps = array("d")
        #: Position -> (bits of NAN, INF, MINUS_INF, lowest step of such a value).
        self.bad: dict[int, tuple[int, float]] = {}

    def add(self, slot: int, step: float, value: float, time: float) -> None:
        """Take one point into the bucket at ``slot``."""
        self.count += 1
        last = self.last
        if last is not None and step > last.step:
            last.step, last.time, last.value = step, time, value
        else:
            self._keep_ends(Point(step, time, value))
        if slot >= len(self.counts):
            self._grow(slot + 1)
        if not math.isfinite(value):
            self._mark(slot, NAN if value != value else INF if value > 0 else MINUS_INF, step)
            return
        self.counts[slot] += 1
        self.sums[slot] += value
        low, high = self.lows[slot], self.highs[slot]
        if value < low or (value == low and step < self.low_steps[slot]):
            self.lows[slot], self.low_steps[slot] = value, step
        if value > high or (value == high and step < self.high_steps[slot]):
            self.highs[slot], self.high_steps[slot] = value, step

    @property
    def folded(self) -> tuple[float, ...]:
        """All that is known of a series that has nothing but a bucket at position 0, but for its ends."""
        columns = (self.counts, self.sums, self.lows, self.low_steps, self.highs, self.high_steps)
        return (*(column[0] for column in columns), *self.bad.get(0, (0, math.inf)))

    def add_folded(self, slot: int, points: int, last: Point, folded: Sequence[float]) -> None:
        """Take so many points into the bucket at ``slot``, of which the last one is given, and what they fold to."""
        count, total, low, low_step, high, high_step, bits, step = map(float, folded)
        self.count += points
        self._keep_ends(last)
        if slot >= len(self.counts):
            self._grow(slot + 1)
        if count:
            self._merge(slot, int(count), total, low, low_step, high, high_step)
        if bits:
            self._mark(slot, int(bits), step)

    def has(self, slot: int) -> bool:
        """Say whether the bucket holds a finite value of this rank."""
        return slot < len(self.counts) and self.counts[slot] > 0

    def coarsen(self, moves: list[int]) -> None:
        """Merge buckets as ``Grid.coarsen`` said."""
        old = list(
            zip(moves, self.counts, self.sums, self.lows, self.low_steps, self.highs, self.high_steps, strict=False)
        )
        bad, self.bad = self.bad, {}
        for column in (self.counts, self.sums, self.lows, self.low_steps, self.highs, self.high_steps):
            del column[:]
        self._grow(max((row[0] for row in old), default=-1) + 1)
        for row in old:
            self._merge(*row)
        for slot, (bits, step) in bad.items():
            self._mark(moves[slot], bits, step)

    def keep(self, slots: list[int], before: float) -> None:
        """Keep the buckets at these positions, in this order, and no end at ``before`` or later."""
        self.bad = {new: self.bad[slot] for new, slot in enumerate(slots) if slot in self.bad}
        for name, empty in _EMPTY:
            column = getattr(self, name)
            here = [column[slot] if slot < len(column) else empty for slot in slots]
            setattr(self, name, array(column.typecode, here))
        self._end_before(before)

    def drop(self, slots: list[int], before: float) -> None:
        """Empty the buckets at these positions, and keep no end at ``before`` or later."""
        for slot in slots:
            self.bad.pop(slot, None)
            for name, empty in _EMPTY:
                column = getattr(self, name)
                if slot < len(column):
                    column[slot] = empty
        self._end_before(before)

    def _end_before(self, step: float) -> None:
        self.first = self.first if self.first is not None and self.first.step < step else None
        self.last = self.last if self.last is not None and self.last.step < step else None

    def _merge(
        self, new: int, count: int, total: float, low: float, low_step: float, high: float, high_step: float
    ) -> None:
        self.counts[new] += count
        self.sums[new] += total
        if (low, low_step) < (self.lows[new], self.low_steps[new]):
            self.lows[new], self.low_steps[new] = low, low_step
        if (-high, high_step) < (-self.highs[new], self.high_steps[new]):
            self.highs[new], self.high_steps[new] = high, high_step

    def _mark(self, slot: int, bits: int, step: float) -> None:
        known, first = self.bad.get(slot, (0, math.inf))
        self.bad[slot] = (known | bits, min(first, step))

    def _grow(self, size: int) -> None:
        missing = size - len(self.counts)
        for zeros in (self.counts, self.sums):
            zeros.extend([0] * missing)
        for infinite in (self.lows, self.low_steps, self.high_steps):
            infinite.extend([math.inf] * missing)
        self.highs.extend([-math.inf] * missing)

    def _keep_ends(self, point: Point) -> None:
        if self.first is None or point.order < self.first.order:
            self.first = Point(point.step, point.time, point.value)
        if self.last is None or point.order >= self.last.order:
            self.last = point


class Metric:
    """One metric of a job: the series of its ranks on one grid."""

    __slots__ = ("_again", "_cut", "count", "grid", "limit", "series")

    def __init__(self) -> None:
        self.grid = Grid()
        self.series: dict[int, Series] = {}
        self.limit = MAX_BUCKETS
        #: Points of all ranks.
        self.count = 0
        #: The ranks that have reported since the last restart, None without one; and the first step of the first.
        self._again: set[int] | None = None
        self._cut = math.inf

    def restart(self) -> None:
        """Let the points that come from now on replace those of the same and later steps."""
        self._again = set()

    def add(self, rank: int, step: float, value: float, time: float) -> None:
        """Take one point of one rank. ``step`` and ``time`` must be finite."""
        if self._again is not None and rank not in self._again:
            self._go_back(rank, step, self._again)
        series = self.series.get(rank)
        if series is None:
            series = self._new(rank)
        self.count += 1
        grid = self.grid
        series.add(grid.slot(step, time), step, value, time)
        if len(grid.slots) > self.limit:
            self._coarsen()

    def add_folded(self, rank: int, points: int, last: Point, folded: Sequence[float]) -> None:
        """Take several points of one rank in one bucket, of which ``extends`` was true."""
        series = self.series.get(rank)
        if series is None:
            series = self._new(rank)
        self.count += points
        series.add_folded(self.grid.slot(last.step, last.time), points, last, folded)

    def extends(self, rank: int, step: float) -> bool:
        """Say whether a point falls into the bucket of the rank's newest one, and not before it."""
        series = self.series.get(rank)
        if series is None or series.last is None or (self._again is not None and rank not in self._again):
            return False
        return step >= series.last.step and self.grid.number(step) == self.grid.number(series.last.step)

    def _go_back(self, rank: int, step: float, restarted: set[int]) -> None:
        """Take away what a rank's first report after a restart replaces; the first of all ranks speaks for all."""
        if not restarted:
            self._cut = step
            slots = self.grid.cut(step)
            for series in self.series.values():
                series.keep(slots, step)
        elif step < self._cut:
            self.forget_from(rank, step)
        restarted.add(rank)

    def forget_from(self, rank: int, step: float) -> None:
        """Take away what one rank reported of this step and of later ones."""
        if rank in self.series:
            later = [slot for slot in self.grid.slots.values() if self.grid.low_steps[slot] >= step]
            self.series[rank].drop(later, step)

    def is_current(self, rank: int) -> bool:
        """Return whether a rank has reported since the last restart, or none has."""
        return not self._again or rank in self._again

    def ranked(self) -> list[tuple[int, Series]]:
        """Return (rank, series) in order of ranks."""
        return sorted(self.series.items())

    def _new(self, rank: int) -> Series:
        series = self.series[rank] = Series()
        self.limit = max(_MIN_BUCKETS, min(MAX_BUCKETS, _MAX_CELLS // len(self.series)))
        return series

    def _coarsen(self) -> None:
        moves = self.grid.coarsen(self.limit)
        for series in self.series.values():
            series.coarsen(moves)

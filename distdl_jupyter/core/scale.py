"""Axes of a curve: round ranges, ticks and their labels, the same for every surface that draws one.

Pure arithmetic. Ranges grow in steps (they end on round numbers), so that a live curve does not slide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Beyond this a picture cannot be drawn with doubles; values are shown at the edge.
_HUGE = 1e300
#: Where the last tick of a step axis may be, as a share of the axis.
_LAST_TICK = 0.82


@dataclass(frozen=True, slots=True)
class Axis:
    """A range with its ticks: (value, label). In a logarithmic axis all values are positive."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value stands: 0 at the low end, 1 at the high end, never outside."""
        if self.log:
            if value <= 0:
                return 0.0
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return min(1.0, max(0.0, share))


def value_axis(values: Iterable[float], most: int = 6) -> Axis:
    """Return a linear axis with at most ``most`` intervals for finite values; from 0 when that wastes little room."""
    low, high = _extent(values)
    if 0 < low <= 0.4 * high:
        low = 0.0
    if high < 0 and high >= 0.4 * low:
        high = 0.0
    step = _round_up((high / most) - (low / most))
    return _linear(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step)


def log_axis(values: Iterable[float], most: int = 6) -> Axis | None:
    """Return a logarithmic axis for the positive values, None when there are none."""
    positive = [min(value, _HUGE) for value in values if value > 1e-300]
    if not positive:
        return None
    low, high = min(positive) / 1.12, max(positive) * 1.12
    if high / low < 2:
        low, high = low / 1.5, high * 1.5
    ticks = _log_ticks(low, high, most)
    return Axis(low, high, tuple((tick, _plain(tick)) for tick in ticks), log=True)


def step_axis(low: float, high: float, most: int = 6) -> Axis:
    """Return the axis of steps. Its end is a quarter of a tick round; ticks too near to the end are left out.

    The space at the end is for the axis' name; a page that is narrower than planned leaves out more labels.
    """
    if 0 <= low <= 0.2 * high:
        low = 0.0
    if high - low <= 1e-12 * max(1.0, abs(low)):  # one step only
        high = low + max(1.0, 1e-6 * abs(low))
    step = _round_up((high - low) / most)
    if float(low).is_integer() and float(high).is_integer():
        step = max(1.0, step)
    quarter = step / 4
    axis = _linear(math.floor(low / quarter + 1e-9) * quarter, math.ceil(high / quarter - 1e-9) * quarter, step)
    kept = tuple(tick for tick in axis.ticks if axis.place(tick[0]) <= _LAST_TICK)
    return Axis(axis.low, axis.high, kept)


def _extent(values: Iterable[float]) -> tuple[float, float]:
    """Return finite ends that differ enough to be told apart."""
    known = [min(_HUGE, max(-_HUGE, value)) for value in values] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low > 1e-9 * max(abs(low), abs(high)) and high - low > 1e-290:
        return low, high
    if abs(high) < 1e-290:
        return 0.0, 1.0
    return min(0.0, 1.25 * low), max(0.0, 1.25 * high)


def _round_up(rough: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 5):
        if rough <= factor * power * (1 + 1e-9):
            return factor * power
    return 10 * power


def _linear(low: float, high: float, step: float) -> Axis:
    first = math.ceil(low / step - 1e-9)
    amount = math.floor(high / step + 1e-9) - first + 1
    ticks = [(first + n) * step for n in range(amount)]
    return Axis(low, high, tuple((tick, _fixed(tick, step, max(abs(low), abs(high)))) for tick in ticks))


def _fixed(value: float, step: float, largest: float) -> str:
    """Return a tick's label with the decimals that the ticks' distance needs."""
    if largest >= 1e7 or step < 1e-5:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step)))
        return _short_exponent(f"{value:.{digits}e}") if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:,.{decimals}f}"


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return 1, 2, 5 of each decade when they fit, else powers of ten, else every second, third ... of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most + 1:
            return ticks
    every = math.ceil((last - first) / most)
    return [10.0**power for power in range(first, last + 1) if power % every == 0 and low <= 10.0**power <= high]


def _plain(value: float) -> str:
    if 1e-4 <= value < 1e7:
        return f"{value:,.0f}" if value >= 1 else f"{value:.{-math.floor(math.log10(value) + 1e-9)}f}"
    return _short_exponent(f"{value:.0e}")


def _short_exponent(text: str) -> str:
    """``1.50e-05`` becomes ``1.5e-5``."""
    mantissa, exponent = text.split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"

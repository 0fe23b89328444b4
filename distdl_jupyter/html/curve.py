"""The curve of a metric as a small SVG picture without scripts: mean, band and last value."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from distdl_jupyter.core.humanize import number, printable
from distdl_jupyter.core.series import Band, Row
from distdl_jupyter.html.page import PAPER

#: Size of the picture in pixels.
WIDTH, HEIGHT = 430, 196
#: Margins of the plot in pixels.
_LEFT, _TOP, _BOTTOM = 36, 26, 24
#: Steps beyond this share of the axis (0 to 1) have no label, which leaves space for the name of the axis.
_MAX_TICK_SHARE = 0.82
#: Larger values are drawn at the edge, because differences of doubles overflow.
_MAX_VALUE = 1e300
_INK, _GRID, _AXIS, _CURVE, _WARN, _GROUND = (
    PAPER[name] for name in ("dim", "faint", "line", "brand", "warn_mark", "ground")
)
_SANS = "system-ui,-apple-system,Segoe UI,Helvetica Neue,Helvetica,Arial,sans-serif"


def draw_svg(band: Band, name: str = "", *, points: int = 180) -> str:
    """Return the picture with the metric's name as its title and lines of about ``points`` points.

    Extrema are exact for any number of points. An empty band gives an empty plot.
    """
    rows = thin_rows(band.rows, points)
    values = [value for row in rows for value in (row.low, row.high) if value is not None]
    label = "" if band.last is None else number(band.last)
    frame = _Frame(_find_axis_range([row.step for row in rows]), _find_axis_range(values), WIDTH - 10 - 7 * len(label))
    parts = [*_draw_grid(frame), *_draw_curve(band, rows, frame), *_draw_last_point(band, rows, label, frame)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = f'font-family="{_SANS}" font-size="11" fill="{_INK}"'
    title = f'<text x="{_LEFT}" y="14" font-weight="600">{html.escape(shorten_name(name))}</text>'
    return f'{head} role="img" {style}>{title}{"".join(parts)}</svg>'


def _find_axis_range(values: Iterable[float]) -> tuple[float, float]:
    """Return the lower and upper end of an axis, including 0 if that needs little space."""
    clipped = [min(_MAX_VALUE, max(-_MAX_VALUE, value)) for value in values] or [0.0]
    low, high = min(clipped), max(clipped)
    low = 0.0 if 0 < low <= 0.4 * high else low
    high = 0.0 if 0 > high >= 0.4 * low else high
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # all values are equal
        low, high = min(0.0, 1.25 * low), max(0.0, 1.25 * high)
    return (low, high) if high - low > 1 / _MAX_VALUE else (0.0, 1.0)


def shorten_name(name: str) -> str:
    """Return a metric's name, shortened to fit to the left of the legend."""
    text = printable(name)
    return text if len(text) <= 24 else f"{text[:23]}…"


def thin_rows(rows: list[Row], max_rows: int) -> list[Row]:
    """Return about ``max_rows`` rows: neighbors are merged with their exact extrema, both ends stay unchanged."""
    if len(rows) <= max_rows:
        return rows
    size = -(-(len(rows) - 2) // max(1, max_rows - 2))
    inner = rows[1:-1]
    return [rows[0], *(_merge(inner[start : start + size]) for start in range(0, len(inner), size)), rows[-1]]


def _merge(rows: list[Row]) -> Row:
    means = [row.mean for row in rows if row.mean is not None]
    lows = [row.low for row in rows if row.low is not None]
    highs = [row.high for row in rows if row.high is not None]
    mean = min(max(means), max(min(means), sum(value / len(means) for value in means))) if means else None
    middle = rows[0].step / 2 + rows[-1].step / 2
    return replace(rows[-1], step=middle, mean=mean, low=min(lows, default=None), high=max(highs, default=None))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Converts values to pixels; ``x`` and ``y`` are the ends of the axes, ``right`` is the right edge of the plot."""

    x: tuple[float, float]
    y: tuple[float, float]
    right: float

    def format_point(self, step: float, value: float) -> str:
        """Return a point as "x y" in pixels, with one decimal."""
        return f"{self.to_x(step):.1f} {self.to_y(value):.1f}"

    def to_x(self, step: float) -> float:
        """Return the x coordinate of a step."""
        return _LEFT + _find_share(step, *self.x) * (self.right - _LEFT)

    def to_y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return _TOP + (1 - _find_share(value, *self.y)) * (HEIGHT - _TOP - _BOTTOM)


def _find_share(value: float, low: float, high: float) -> float:
    """Return the relative position of a value in a range: 0 at the low end, 1 at the high end, clipped to both."""
    return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2)))


def _choose_ticks(low: float, high: float, max_count: int, min_step: float = 0.0) -> list[tuple[float, str]]:
    """Return about ``max_count`` round numbers in a range, at least ``min_step`` apart, each with its label."""
    raw_step = high / max_count - low / max_count
    power = 10.0 ** math.floor(math.log10(raw_step))
    step = max(min_step, next(factor * power for factor in (1, 2, 5, 10, 20) if raw_step <= factor * power))
    ticks = [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    if max(abs(low), abs(high)) >= 1e7 or step < 1e-5:
        return [(tick, number(tick)) for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(tick, f"{tick + 0.0:,.{decimals}f}") for tick in ticks]


def _draw_grid(frame: _Frame) -> list[str]:
    parts = []
    bottom, right = HEIGHT - _BOTTOM, f"{frame.right:.0f}"
    for value, label in _choose_ticks(*frame.y, 5):
        y = round(frame.to_y(value)) + 0.5
        parts.append(f'<path d="M{_LEFT} {y}H{right}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 3.5}" text-anchor="end">{label}</text>')
    parts.append(f'<path d="M{_LEFT} {bottom + 0.5}H{right}" stroke="{_AXIS}"/>')
    is_integral = all(end.is_integer() for end in frame.x)
    for step, label in _choose_ticks(*frame.x, 6, float(is_integral)):
        if _find_share(step, *frame.x) > _MAX_TICK_SHARE:
            continue
        x = round(frame.to_x(step)) + 0.5
        parts.append(f'<path d="M{x} {bottom}v3" stroke="{_AXIS}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 15}" text-anchor="end">step</text>')
    return parts


def _draw_curve(band: Band, rows: list[Row], frame: _Frame) -> list[str]:
    bounds = [(row.step, row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    has_band = any(low != high for _, low, high in bounds)
    parts = []
    if has_band:
        upper = "L".join(frame.format_point(step, high) for step, _, high in bounds)
        lower = "L".join(frame.format_point(step, low) for step, low, _ in reversed(bounds))
        parts.append(f'<path d="M{upper}L{lower}Z" fill="#1976d2" fill-opacity="0.22"/>')
    style = f'fill="none" stroke="{_CURVE}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
    parts.extend(f'<path d="M{"L".join(points)}" {style}/>' for points in _split_segments(rows, frame))
    parts.extend(_draw_marks(band, frame))
    parts.extend(_draw_legend(band, frame) if has_band else ())
    return parts


def _split_segments(rows: list[Row], frame: _Frame) -> list[list[str]]:
    """Return the points of the mean as segments without gaps; a single point is repeated, so that it is drawn."""
    segments: list[list[str]] = [[]]
    for row in rows:
        if row.mean is not None:
            segments[-1].append(frame.format_point(row.step, row.mean))
        elif segments[-1]:
            segments.append([])
    return [segment if len(segment) > 1 else segment * 2 for segment in segments if segment]


def _draw_marks(band: Band, frame: _Frame) -> list[str]:
    y = HEIGHT - _BOTTOM
    positions = sorted({round(frame.to_x(mark.step) / 3) * 3 for mark in band.marks})
    crosses = "".join(f"M{x - 3} {y - 3}l6 6m0 -6l-6 6" for x in positions)
    return [f'<path d="{crosses}" stroke="{_WARN}" stroke-width="1.5"/>'] if crosses else []


def _draw_last_point(band: Band, rows: list[Row], label: str, frame: _Frame) -> list[str]:
    if not label:
        return []
    mean = rows[-1].mean
    x, y = frame.to_x(band.last_step), frame.to_y(frame.y[0] if mean is None else mean)
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_CURVE}"/>' if mean is not None else ""
    colour = _CURVE if mean is not None else _WARN
    halo = f'stroke="{_GROUND}" stroke-width="3" paint-order="stroke"'  # keeps the label readable above lines
    return [dot, f'<text x="{x + 7:.1f}" y="{y + 4:.1f}" font-weight="600" fill="{colour}" {halo}>{label}</text>']


def _draw_legend(band: Band, frame: _Frame) -> list[str]:
    has_several_ranks = len(band.ranks) > 1
    label = f"mean of {len(band.ranks)}" if has_several_ranks else "mean"
    # Fonts may be 15 % wider than expected.
    line_x, band_x = frame.right - 126 - 7 * len(label), frame.right - 92
    return [
        f'<path d="M{line_x:.0f} 10.5h16" stroke="{_CURVE}" stroke-width="2"/>',
        f'<text x="{line_x + 21:.0f}" y="14">{label}</text>',
        f'<rect x="{band_x:.0f}" y="5" width="16" height="10" fill="#1976d2" fill-opacity="0.25"/>',
        f'<text x="{band_x + 21:.0f}" y="14">min to max</text>',
    ]

"""What a notebook keeps of a scaling study: one static page with the figure as a picture, true without any server.

The page holds what ``views.scaling_panel`` says and nothing else. JupyterLab draws the same in ``job/scaling.ts``.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core.state import State
from distdl_jupyter.saved.pages import PAPER, page
from distdl_jupyter.views.scaling_panel import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.views.schema import ScalingPanel, ScalingRow

WIDTH, HEIGHT = 438, 344
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 64, 14, 40
#: Colour and dash of each backend; beyond these they come again.
_COLOURS, _DASHES = (PAPER.brand, PAPER.ink, "#00695c", "#8e24aa"), ("", "5 3", "2 3", "8 3 2 3")
#: Pixels between the marks of two backends at one number of processes.
_BESIDE = 14.0
#: Pixels between the axis and the fewest processes.
_INSET = 14
_GREY, _GRID, _AXIS = "#8f8f8f", "#ececec", "#c4c4c4"
_MOST_TICKS = 7
_COLUMNS = ("Efficiency", "Own work", "Communication", "Waiting", "Batch", "lr")


def html(panel: ScalingPanel) -> str:
    """Return the page of a study as far as it has come."""
    backends = list(dict.fromkeys(row.backend for row in panel.rows))
    has_lr = any(row.learning_rate is not None for row in panel.rows)
    return page(
        "scaling.html",
        PAPER,
        panel=panel,
        state=State(panel.state),
        title=_title(panel),
        legend=[(name, mark(at, hollow=False)) for at, name in enumerate(backends)],
        figure=_picture(panel, backends) if panel.rows else None,
        columns=("Processes", "", _title(panel), *_COLUMNS[: None if has_lr else -1]),
        rows=[_row(row, before, backends, has_lr=has_lr) for before, row in pairwise((None, *panel.rows)) if row],
        prices=_prices(panel),
    )


def mark(backend: int, *, hollow: bool) -> str:
    """Return the mark of a backend as SVG within 10 x 10 pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10" style="display:block;flex:none">'
        f"{_mark(backend, 5, 5, hollow=hollow)}</svg>"
    )


def _title(panel: ScalingPanel) -> str:
    return "Samples/s" if panel.unit == "samples" else "Batches/s"


def _row(row: ScalingRow, before: ScalingRow | None, backends: Sequence[str], *, has_lr: bool) -> dict[str, Any]:
    again = before is not None and before.processes == row.processes and before.measured == row.measured
    about = "" if row.measured else "about "
    cells = [
        f"{about}{humanize.number(row.rate)}",
        _share(row.efficiency, row.efficiency_error),
        *map(milliseconds, (row.own, row.communication, row.waiting)),
        "" if row.batch is None else humanize.count(round(row.batch)),
        *(["" if row.learning_rate is None else f"{row.learning_rate:.4g}"] if has_lr else []),
    ]
    hot = {"own": 2, "communication": 3, "waiting": 4}.get(row.slow, -1)
    return {
        "processes": "" if again else humanize.count(row.processes), "measured": row.measured,
        "backend": row.backend if row.measured else "forecast",
        "mark": mark(backends.index(row.backend), hollow=not row.measured), "cells": cells, "hot": hot,
        "slow": row.slow != "",
    }  # fmt: skip


def _share(efficiency: float, error: float) -> str:
    return f"{efficiency:.0f} ± {error:.0f} %" if error else f"{efficiency:.0f} %"


def _prices(panel: ScalingPanel) -> list[dict[str, Any]]:
    most = max((one.high for one in panel.prices), default=0.0)
    return [
        {"one": one, "share": _share(one.efficiency, one.efficiency_error),
         "seconds": humanize.seconds_taken(one.seconds) if one.seconds >= 1 else f"{one.seconds:.2g} s",
         "per_hour": humanize.money(one.per_hour, one.currency), "cost": f"{one.cost:.3g} {one.currency}",
         "width": 100 * one.cost / most, "low": 100 * one.low / most, "high": 100 * one.high / most}
        for one in panel.prices
    ]  # fmt: skip


# the figure ---------------------------------------------------------------------------------------


def _picture(panel: ScalingPanel, backends: Sequence[str]) -> dict[str, Any]:
    data = base64.b64encode(svg(panel, backends).encode()).decode()
    return {"address": f"data:image/svg+xml;base64,{data}", "width": WIDTH, "height": HEIGHT, "says": says(panel)}


def says(panel: ScalingPanel) -> str:
    """Return the figure as a sentence."""
    parts = [
        f"{'' if row.measured else 'about '}{humanize.number(row.rate)} ({_share(row.efficiency, row.efficiency_error)}"
        f" of ideal) with {humanize.plural(row.processes, 'process')} of {row.backend}"
        for row in panel.rows
    ]
    return f"{_title(panel)}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class _Frame:
    """From numbers of processes and rates to pixels; both axes double."""

    first: float
    last: float
    low: float
    high: float

    def x(self, processes: float) -> float:
        span = max(self.last - self.first, 1e-9)
        return _LEFT + _INSET + (math.log2(processes) - self.first) / span * (WIDTH - _LEFT - _INSET - _RIGHT)

    def y(self, rate: float) -> float:
        share = (math.log2(max(rate, 1e-12)) - self.low) / (self.high - self.low)
        return _TOP + (1 - min(1.0, max(0.0, share))) * (HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Return rates that double from a round one below ``low`` to one not above ``high``."""
    power = 10.0 ** math.floor(math.log10(low))
    value = max(one * power for one in (1.0, 2.0, 5.0) if one * power <= low)
    found = [value]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found[:: -(-len(found) // _MOST_TICKS)]


def _tick(value: float) -> str:
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{word}"
    return f"{value:g}"


def svg(panel: ScalingPanel, backends: Sequence[str]) -> str:
    """Return the picture, ``WIDTH`` x ``HEIGHT`` pixels."""
    counts = sorted({row.processes for row in panel.rows})
    ideal = panel.ideal or 1.0
    lowest = min(max(row.rate - row.error, row.rate / 2) for row in panel.rows)
    highest = max(ideal * counts[-1], *(row.rate + row.error for row in panel.rows))
    ticks = _ticks(lowest * 0.85, highest)
    top = 1.1 * max(ticks[-1], highest)
    # A single number of processes stands in the middle.
    alone = len(counts) == 1
    frame = _Frame(math.log2(counts[0]) - alone, math.log2(counts[-1]) + alone, math.log2(ticks[0]), math.log2(top))
    parts = [*_ground(panel, frame), *_axes(counts, ticks, frame), *_ideal(ideal, counts, frame)]
    for at, backend in reversed(list(enumerate(backends))):
        rows = [row for row in panel.rows if row.backend == backend]
        parts += [*_forecast(at, rows, frame), *_measured(at, len(backends), rows, frame)]
    parts += [*_labels(panel, backends, frame), *_without(panel, frame)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="11" '
        f'fill="{PAPER.dim}">{"".join(parts)}</svg>'
    )


def _border(panel: ScalingPanel, frame: _Frame) -> float | None:
    """Return where measured ends and forecast begins, None without a forecast."""
    known = [row.processes for row in panel.rows if row.measured]
    after = [row.processes for row in panel.rows if not row.measured]
    if not after or not known:
        return None
    return frame.x(max(known)) + 0.35 * (frame.x(min(after)) - frame.x(max(known)))


def _ground(panel: ScalingPanel, frame: _Frame) -> list[str]:
    x = _border(panel, frame)
    if x is None:
        return []
    high, base = HEIGHT - _TOP - _BOTTOM, HEIGHT - _BOTTOM
    return [
        f'<rect x="{x:.1f}" y="{_TOP}" width="{WIDTH - _RIGHT - x:.1f}" height="{high}" fill="{PAPER.sunk}"/>',
        f'<path d="M{x:.1f} {_TOP}V{base}" stroke="{_AXIS}" stroke-dasharray="2 3"/>',
        f'<text x="{x - 6:.1f}" y="{base - 8}" text-anchor="end" fill="{PAPER.ink}">measured</text>',
        f'<text x="{x + 6:.1f}" y="{base - 8}">forecast</text>',
    ]


def _axes(counts: Sequence[int], ticks: Sequence[float], frame: _Frame) -> list[str]:
    right, base = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for value in ticks:
        y = frame.y(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    parts.append(f'<path d="M{_LEFT} {base}H{right}" stroke="{_AXIS}"/>')
    for processes in counts:
        x = frame.x(processes)
        parts.append(f'<path d="M{x:.1f} {base}v3" stroke="{_AXIS}"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{processes}</text>')
    middle = (_LEFT + right) / 2
    return [*parts, f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">processes</text>']


def _ideal(ideal: float, counts: Sequence[int], frame: _Frame) -> list[str]:
    if len(counts) < 2:
        return []
    (x0, y0), (x1, y1) = ((frame.x(count), frame.y(ideal * count)) for count in (counts[0], counts[-1]))
    return [
        f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{_GREY}" stroke-width="1.25" stroke-dasharray="4 3"/>',
        f'<text x="{x1 + 7:.1f}" y="{y1 + 4:.1f}">ideal</text>',
    ]


def _forecast(at: int, rows: Sequence[ScalingRow], frame: _Frame) -> list[str]:
    after = [row for row in rows if not row.measured]
    if not after:
        return []
    colour = _COLOURS[at % len(_COLOURS)]
    last = [row for row in rows if row.measured][-1]
    points = [(last.processes, last.rate, 0.0), *((row.processes, row.rate, row.error) for row in after)]
    upper = "L".join(f"{frame.x(n):.1f} {frame.y(rate + error):.1f}" for n, rate, error in points)
    lower = "L".join(f"{frame.x(n):.1f} {frame.y(rate - error):.1f}" for n, rate, error in reversed(points))
    line = "L".join(f"{frame.x(n):.1f} {frame.y(rate):.1f}" for n, rate, _ in points)
    marks = [_mark(at, frame.x(row.processes), frame.y(row.rate), hollow=True) for row in after]
    return [
        f'<path d="M{upper}L{lower}Z" fill="{colour}" fill-opacity="0.16"/>',
        f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="1 4" '
        'stroke-linecap="round"/>',
        *marks,
    ]


def _measured(at: int, many: int, rows: Sequence[ScalingRow], frame: _Frame) -> list[str]:
    known = [row for row in rows if row.measured]
    colour, dash = _COLOURS[at % len(_COLOURS)], _DASHES[at % len(_DASHES)]
    beside = (at - (many - 1) / 2) * _BESIDE
    places = [(frame.x(row.processes) + beside, frame.y(row.rate)) for row in known]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    style = f' stroke-dasharray="{dash}"' if dash else ""
    width = 1.5 if dash else 2
    parts = [f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="{width}"{style}/>'] if known else []
    for row, (x, y) in zip(known, places, strict=True):
        top, bottom = frame.y(row.rate + row.error), frame.y(row.rate - row.error)
        bar = f"M{x:.1f} {top:.1f}V{bottom:.1f}M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {bottom:.1f}h8"
        parts += [f'<path d="{bar}" stroke="{colour}" stroke-width="1.25"/>', _mark(at, x, y, hollow=False)]
    return parts


def _mark(at: int, x: float, y: float, *, hollow: bool) -> str:
    colour = _COLOURS[at % len(_COLOURS)]
    style = f'fill="#fff" stroke="{colour}" stroke-width="1.5"' if hollow else f'fill="{colour}"'
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3.5 if hollow else 4}" {style}/>',
        f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" {style}/>',
        f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z" {style}/>',
        f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 8h-9Z" {style}/>',
    )
    return shapes[at % len(shapes)]


def _labels(panel: ScalingPanel, backends: Sequence[str], frame: _Frame) -> list[str]:
    """Return the efficiency at the last point that was measured of the first backend, and at each forecast."""
    rows = [row for row in panel.rows if row.backend == backends[0]]
    known, after = [row for row in rows if row.measured], [row for row in rows if not row.measured]
    parts = []
    if len(known) > 1:
        x, y = frame.x(known[-1].processes), frame.y(known[-1].rate)
        parts.append(f'<text x="{x:.1f}" y="{y + 27:.1f}" text-anchor="middle" font-size="13" font-weight="600" '
                     f'fill="{PAPER.brand}">{known[-1].efficiency:.0f} %</text>')  # fmt: skip
    for row in after[:-1]:
        x, y = frame.x(row.processes), frame.y(row.rate)
        share = escape(_share(row.efficiency, row.efficiency_error))
        parts.append(f'<text x="{x + 2:.1f}" y="{y + 20:.1f}" fill="{PAPER.brand}">{share}</text>')
    if after:
        x, y = frame.x(after[-1].processes) + 9, frame.y(after[-1].rate)
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" font-weight="600" fill="{PAPER.brand}">'
                     f"{after[-1].efficiency:.0f} %</text>"
                     f'<text x="{x:.1f}" y="{y + 18:.1f}">± {after[-1].efficiency_error:.0f}</text>')  # fmt: skip
    return parts


def _without(panel: ScalingPanel, frame: _Frame) -> list[str]:
    one = panel.without
    if one is None:
        return []
    x, y = frame.x(one.processes), frame.y(one.rate)
    end = max(x + 2, _LEFT + 8 + 6 * len(one.text))  # the text ends here, and begins beside the axis at least
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#fff" stroke="{PAPER.warn}" stroke-width="1.75"/>',
        f'<text x="{end:.1f}" y="{y - 18:.1f}" text-anchor="end" fill="{PAPER.warn}">{escape(one.text)}</text>',
    ]

"""Several jobs' curves of one metric as one plotly figure: a line per job, told apart by colour and by dash.

The first traces are the jobs' lines in the order in which they were given; each has its job's short id at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distdl_jupyter.core.curves import Band
from distdl_jupyter.core.figure import CORNER, HEIGHT, WIDTH, Figure, Look, Plot, chosen_value_axis, layout_of
from distdl_jupyter.core.humanize import duration, short_id
from distdl_jupyter.core.scale import Axis, step_axis, time_axis
from distdl_jupyter.core.theme import DARK, LIGHT, Theme
from distdl_jupyter.core.traces import Trace, drawable

Against = Literal["step", "elapsed"]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
#: Pixels of a line of small text: labels nearer than this would cover each other.
_LINE = 13
#: Pixels of a letter of a label, and between a curve's end and its label.
_LETTER, _GAP = 8, 6


@dataclass(frozen=True, slots=True)
class Compared:
    """One job's curve; ``begun`` is the moment (epoch seconds) from which its elapsed time counts."""

    id: str
    band: Band
    begun: float

    def places(self, against: Against) -> list[float]:
        """Return where its rows stand on the axis."""
        if against == "step":
            return [row.step for row in self.band.rows]
        return [max(0.0, row.time - self.begun) for row in self.band.rows]


def compared_figure(
    curves: Sequence[Compared], metric: str, *, against: Against = "step", log: bool = False, dark: bool = False,
    width: int | None = None, height: int | None = None,
) -> Figure:  # fmt: skip
    """Return the means over ranks of one metric of several jobs as ``{"data": [...], "layout": {...}}``."""
    theme = DARK if dark else LIGHT
    look = Look(theme, log, width or WIDTH, height or HEIGHT, None)
    values = [row.mean for curve in curves for row in curve.band.rows if row.mean is not None]
    y, note = chosen_value_axis(values, look)
    x = _across([place for curve in curves for place in curve.places(against)], against, look)
    lines = [_line(number, curve, against, y, theme) for number, curve in enumerate(curves)]
    ends = [_End(number, line, x, y) for number, line in enumerate(lines) if any(v is not None for v in line["y"])]
    plot = Plot([*lines, *(_dot(end) for end in ends)], x, y, _right(ends, curves), 0, note, "x unified")
    layout = layout_of(plot, theme, width, height)
    margin = layout["margin"]
    room = max(1.0, look.width - margin["l"] - margin["r"]), max(1.0, look.height - margin["t"] - margin["b"])
    notes = [one for one in layout["annotations"] if one["text"] != "step"]
    axis = [{**CORNER, "text": "step", "x": 1, "y": 0, "xanchor": "right", "yanchor": "top", "yshift": -4}]
    layout["annotations"] = [*(axis if against == "step" else []), *notes, *_labels(ends, curves, room)]
    if against == "elapsed":
        layout["xaxis"]["unifiedhovertitle"] = {"text": "<b>%{x:,.3~g} s</b>"}
    layout["uirevision"] = f"{metric}/{against}/{log}"
    return {"data": plot.traces, "layout": layout}


def style(number: int, theme: Theme) -> dict[str, Any]:
    """Return colour and dash of a job's line: the first four differ in both, the others at least in one."""
    colours = len(theme.ranks)
    dash = _DASHES[(number + number // colours) % len(_DASHES)]
    return {"color": theme.ranks[number % colours], "dash": dash, "width": 2}


def _across(places: list[float], against: Against, look: Look) -> Axis:
    most = max(2, (look.width - 54) // 62)
    if against == "elapsed":
        return time_axis(max(places, default=1.0) * 1.02, most)
    return step_axis(min(places, default=0.0), max(places, default=1.0), most)


def _line(number: int, curve: Compared, against: Against, y: Axis, theme: Theme) -> Trace:
    points = sorted(zip(curve.places(against), curve.band.rows, strict=True), key=lambda point: point[0])
    name = short_id(curve.id)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "showlegend": False,
        "x": [place for place, _ in points],
        "y": [drawable(row.mean, y) for _, row in points],
        "customdata": [f"step {row.step:,.6g}, {duration(max(0.0, row.time - curve.begun))}" for _, row in points],
        "connectgaps": False,
        "line": style(number, theme),
        "hovertemplate": f"{name}  <b>%{{y:,.4~g}}</b>  %{{customdata}}<extra></extra>",
    }


class _End:
    """The last value of a line that can be shown: where it is on the axes, and as shares of the plot."""

    def __init__(self, number: int, line: Trace, x: Axis, y: Axis) -> None:
        at = max(place for place, value in enumerate(line["y"]) if value is not None)
        self.number = number
        self.x, self.y = line["x"][at], line["y"][at]
        self.across, self.up = x.place(self.x), y.place(self.y)
        self.colour = line["line"]["color"]
        #: Annotations of plotly stand on a logarithmic axis by the logarithm.
        self.height = math.log10(self.y) if y.log else self.y


def _dot(end: _End) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "last",
        "x": [end.x],
        "y": [end.y],
        "marker": {"color": end.colour, "size": 6},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _right(ends: list[_End], curves: Sequence[Compared]) -> int:
    """Return the pixels that labels beside the plot need."""
    return 14 + max((_width(end, curves) for end in ends), default=0)


def _width(end: _End, curves: Sequence[Compared]) -> int:
    return _LETTER * len(short_id(curves[end.number].id))


def _labels(ends: list[_End], curves: Sequence[Compared], room: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the ids to the right of the lines' ends, moved up where they would cover each other."""
    labels: list[dict[str, Any]] = []
    taken: list[tuple[float, float, int]] = []
    for end in sorted(ends, key=lambda end: end.up):
        left, bottom, width = end.across * room[0], end.up * room[1], _width(end, curves)
        for x, y, other in sorted(taken, key=lambda label: label[1]):
            if x - width < left < x + other and abs(y - bottom) < _LINE:
                bottom = y + _LINE
        taken.append((left, bottom, width))
        labels.append(_label(end, curves, round(bottom - end.up * room[1])))
    return labels


def _label(end: _End, curves: Sequence[Compared], shift: int) -> dict[str, Any]:
    return {
        "text": f"<b>{short_id(curves[end.number].id)}</b>",
        "x": end.x,
        "y": end.height,
        "xref": "x",
        "yref": "y",
        "xanchor": "left",
        "xshift": _GAP,
        "yshift": shift,
        "showarrow": False,
        "font": {"color": end.colour, "size": 11},
    }

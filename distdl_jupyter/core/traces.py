"""The lines, bands and marks of a curve as plotly traces: plain dicts. Axes and layout are ``core.figure``'s.

Nothing a user wrote stands in a trace: names and hover texts are made of numbers and ranks.
"""

from __future__ import annotations

from typing import Any

from distdl_jupyter.core.curves import Band, Line, Mark, Row
from distdl_jupyter.core.humanize import clock, count, listing, number, plural, ranks
from distdl_jupyter.core.scale import Axis
from distdl_jupyter.core.theme import Theme

Trace = dict[str, Any]

#: Value in a hover text, as d3-format: four digits, no trailing zeros.
_VALUE = ",.4~g"


def drawable(value: float | None, y: Axis) -> float | None:
    """Return the value when the axis can show it: a logarithmic one has no place for 0 and below."""
    return None if value is None or (y.log and value <= 0) else value


def band_traces(rows: list[Row], y: Axis, colour: str, *, visible: bool) -> list[Trace]:
    """Return the lower and the upper edge of the band from the lowest to the highest value."""
    known = [(row.step, row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    # On a logarithmic axis a band that reaches 0 or below goes on beyond the lower edge of the picture.
    floor = y.low if y.log else -float("inf")
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "visible": visible}
    x = [step for step, _, _ in known]
    return [
        {**edge, "x": x, "y": [max(low, floor) for _, low, _ in known], "name": "min", "showlegend": False},
        {
            **edge,
            "x": x,
            "y": [max(high, floor) for _, _, high in known],
            "name": "min to max",
            "legendrank": 1100,
            "showlegend": visible,
            "fill": "tonexty",
            "fillcolor": colour,
        },
    ]


def mean_trace(band: Band, y: Axis, theme: Theme, *, with_extent: bool) -> Trace:
    """Return the mean over ranks; hovering says the extent with its ranks and the time."""
    several = len(band.ranks) > 1
    who = (", rank %{customdata[3]}", ", rank %{customdata[4]}") if several else ("", "")
    extent = f"<br>highest {_field('customdata[1]')}{who[0]}<br>lowest {_field('customdata[2]')}{who[1]}"
    hover = f"mean <b>{_field('y')}</b>{extent}" if with_extent else f"<b>{_field('y')}</b>"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"mean of {len(band.ranks)}" if several else "mean",
        "showlegend": with_extent,
        "x": [row.step for row in band.rows],
        "y": [drawable(row.mean, y) for row in band.rows],
        "customdata": [[clock(row.time), row.high, row.low, row.high_rank, row.low_rank] for row in band.rows],
        "connectgaps": False,
        "line": {"color": theme.curve, "width": 2},
        "hovertemplate": f"{hover}<br>%{{customdata[0]}}<extra></extra>",
    }


def end_trace(band: Band, label: str, y: Axis, theme: Theme) -> Trace:
    """Return the last value at the line's end: a dot with its number, or the word nan at the axis."""
    shown = drawable(band.rows[-1].mean if band.rows else None, y)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "last",
        "x": [band.last_step] if label else [],
        "y": [y.low if shown is None else shown] if label else [],
        "text": [f"<b>{label}</b>"] if label else [],
        "textposition": "middle right",
        "textfont": {"color": theme.warn if shown is None else theme.curve, "size": 11},
        "marker": {"color": theme.curve, "size": 6, "opacity": 0 if shown is None else 1},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def rank_trace(line: Line, y: Axis, theme: Theme) -> Trace:
    """Return one rank's line with its last value in the legend; the trace's name stays the same while it grows."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"rank {line.rank}  %{{meta[0]}}",
        "meta": ["" if line.last is None else number(line.last)],
        "showlegend": True,
        "x": line.steps,
        "y": [drawable(value, y) for value in line.values],
        "customdata": [clock(moment) for moment in line.times],
        "connectgaps": False,
        "line": {"color": theme.rank_colour(line.rank), "width": 1.5, "dash": theme.rank_dash(line.rank)},
        "hovertemplate": f"rank {line.rank}  <b>{_field('y')}</b>  %{{customdata}}<extra></extra>",
    }


def grey_traces(lines: list[Line], y: Axis, theme: Theme, highlight: int | None) -> list[Trace]:
    """Return all ranks in grey with one entry in the legend, and the highlighted one in its colour on top."""
    traces = [rank_trace(line, y, theme) for line in lines]
    for trace in traces:
        trace.update(line={"color": theme.grey, "width": 1}, showlegend=False)
    if traces:
        traces[0].update(name=plural(len(lines), "rank"), showlegend=True)
    bright = [rank_trace(line, y, theme) for line in lines if line.rank == highlight]
    for trace in bright:
        trace["line"]["width"] = 2
    return traces + bright


def branch_traces(rows: list[Row], name: str, step: float | None, y: Axis, theme: Theme) -> list[Trace]:
    """Return the curve of the job from which this one branches, and a ring at the step where it does; [] for none."""
    if not rows:
        return []
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "showlegend": True,
        "legendrank": 1150,
        "x": [row.step for row in rows],
        "y": [drawable(row.mean, y) for row in rows],
        "connectgaps": False,
        "line": {"color": theme.ink_2, "width": 1},
        "hovertemplate": f"{name}  {_field('y')}<extra></extra>",
    }
    before = [row for row in rows if step is not None and row.step <= step]
    if not before:
        return [line]
    ring = {"symbol": "circle-open", "size": 8, "color": theme.curve, "line": {"width": 2}}
    fork = {"type": "scatter", "mode": "markers", "x": [step], "y": [drawable(before[-1].mean, y)], "marker": ring,
            "hoverinfo": "skip", "showlegend": False}  # fmt: skip
    return [line, fork]


def marks_trace(marks: list[Mark], y: Axis, theme: Theme) -> Trace:
    """Return the crosses on the axis where values were not finite."""
    kinds = dict.fromkeys(kind for mark in marks for kind in mark.kinds)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": ", ".join(kinds) or "nan",
        "visible": bool(marks),
        "showlegend": bool(marks),
        "legendrank": 1200,
        "x": [mark.step for mark in marks],
        "y": [y.low] * len(marks),
        "text": [f"step {count(mark.step)}: {listing(mark.kinds)} on {ranks(mark.ranks)}" for mark in marks],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.warn, "width": 2}},
    }


def _field(name: str) -> str:
    return f"%{{{name}:{_VALUE}}}"

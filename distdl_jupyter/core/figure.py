"""The curve as a plotly figure, defined once: the kernel's panel, a browser and ``job.figure()`` draw the same dict.

Plain dicts and lists; plotly is not needed to make them. For one ``mode`` and set of ranks the traces stand in a fixed
order, so that a live figure can be updated trace by trace.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any, Literal

from distdl_jupyter.core.curves import Band, Line, Mark, Row
from distdl_jupyter.core.scale import Axis, log_axis, step_axis, value_axis
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.theme import COLOURED_RANKS, DARK, LIGHT, Theme
from distdl_jupyter.core.words import clock, count, listing, number, plural, ranks

Figure = dict[str, Any]
Trace = dict[str, Any]
Mode = Literal["band", "ranks"]

#: Pixels for which margins and ticks are chosen when no size is given.
_WIDTH, _HEIGHT = 430, 202
#: Value in a hover text, as d3-format: four digits, no trailing zeros.
_VALUE = ",.4~g"
#: Points of all grey lines together, when there are too many ranks for colours.
_GREY_POINTS = 12_000


def figure(
    book: SeriesBook,
    metric: str,
    *,
    mode: Mode = "band",
    log: bool = False,
    dark: bool = False,
    theme: Theme | None = None,
    width: int | None = None,
    height: int | None = None,
    highlight: int | None = None,
    standalone: bool = False,
) -> Figure:
    """Return one metric over steps as ``{"data": [...], "layout": {...}}``.

    ``mode`` "band" is the mean over ranks with a band from the lowest to the highest; "ranks" is a line per rank, in
    grey above 8 ranks but for ``highlight``. ``width`` and ``height`` are pixels (None: as large as its place; ticks
    are then chosen for 430 x 202). ``standalone`` adds what a panel says around the curve: the metric's name, a
    background, and ticks that follow a zoom. An unknown metric gives an empty plot.
    """
    chosen = theme or (DARK if dark else LIGHT)
    size = (width or _WIDTH, height or _HEIGHT)
    make = _band_figure if mode == "band" else _ranks_figure
    plot = make(book, metric, _Look(chosen, log, size, highlight))
    layout = _layout(plot, chosen, width, height)
    layout["uirevision"] = f"{metric}/{mode}/{log}"
    if standalone:
        _stand_alone(layout, metric, chosen)
    return {"data": plot.traces, "layout": layout}


@dataclass(frozen=True, slots=True)
class _Look:
    """How to draw: theme, logarithmic values or not, pixels, the rank to show in colour."""

    theme: Theme
    log: bool
    size: tuple[int, int]
    highlight: int | None


@dataclass(slots=True)
class _Plot:
    """Traces with their axes; ``right`` pixels beside the plot, ``legend_rows`` above it."""

    traces: list[Trace]
    x: Axis
    y: Axis
    right: int
    legend_rows: int
    note: str = ""


def _band_figure(book: SeriesBook, metric: str, look: _Look) -> _Plot:
    band, theme = book.band(metric), look.theme
    rows = [row for row in band.rows if row.low is not None]
    y, note = _axis([value for row in rows for value in (row.low, row.high) if value is not None], look)
    several = any(row.low != row.high for row in rows)
    end = _end(band, y, theme)
    traces = [
        *_band_traces(rows, y, theme, visible=several),
        _mean_trace(band, y, theme, named=several),
        end,
        _marks_trace(band.marks, y, theme),
    ]
    right = 22 + 7 * len(end["text"][0]) if end["text"] else 14
    legend = 1 if several or band.marks else 0
    return _Plot(traces, _steps([(row.step, row.step) for row in band.rows], look), y, right, legend, note)


def _ranks_figure(book: SeriesBook, metric: str, look: _Look) -> _Plot:
    theme = look.theme
    lines = book.lines(metric)
    coloured = len(lines) <= COLOURED_RANKS
    if not coloured:
        lines = book.lines(metric, max(40, _GREY_POINTS // len(lines)))
    y, note = _axis([value for line in lines for value in line.values if value is not None], look)
    traces = [_rank_trace(line, y, theme) for line in lines] if coloured else _grey_traces(lines, y, look)
    traces.append(_marks_trace(book.band(metric).marks, y, theme))
    x = _steps([(line.steps[0], line.steps[-1]) for line in lines if line.steps], look)
    entries = sum(trace.get("showlegend", True) and trace.get("visible", True) for trace in traces)
    rows = -(-entries * 112 // max(112, look.size[0] - 60))
    return _Plot(traces, x, y, 14, rows if len(lines) > 1 else 0, note)


def _axis(values: list[float], look: _Look) -> tuple[Axis, str]:
    """Return the axis of values and a note when it is not the one asked for."""
    most = max(2, (look.size[1] - 50) // 30)
    if look.log:
        axis = log_axis(values, most)
        if axis is not None:
            return axis, ""
    return value_axis(values, most), "Log shows values above 0 only." if look.log and values else ""


def _steps(spans: list[tuple[float, float]], look: _Look) -> Axis:
    most = max(2, (look.size[0] - 54) // 62)
    return step_axis(min((low for low, _ in spans), default=0.0), max((high for _, high in spans), default=1.0), most)


def _drawn(value: float | None, y: Axis) -> float | None:
    """Return the value when the axis can show it: a logarithmic one has no place for 0 and below."""
    return None if value is None or (y.log and value <= 0) else value


def _band_traces(rows: list[Row], y: Axis, theme: Theme, *, visible: bool) -> list[Trace]:
    x = [row.step for row in rows]
    edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip", "visible": visible}
    # At the lower edge of a logarithmic axis the band goes on below what can be shown.
    lows, highs = ([max(value or 0.0, y.low) if y.log else value for value in values] for values in _edges(rows))
    fill = {"fill": "tonexty", "fillcolor": theme.band, "name": "min to max", "showlegend": visible}
    return [{**edge, "y": lows, "showlegend": False}, {**edge, "y": highs, **fill, "legendrank": 2}]


def _edges(rows: list[Row]) -> tuple[list[float | None], list[float | None]]:
    return [row.low for row in rows], [row.high for row in rows]


def _mean_trace(band: Band, y: Axis, theme: Theme, *, named: bool) -> Trace:
    several = len(band.ranks) > 1
    details = [[clock(row.time), row.high, row.low, row.high_rank, row.low_rank] for row in band.rows]
    who = (", rank %{customdata[3]}", ", rank %{customdata[4]}") if several else ("", "")
    extent = (
        f"<br>highest {_field('customdata[1]')}{who[0]}<br>lowest {_field('customdata[2]')}{who[1]}" if named else ""
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"mean of {len(band.ranks)}" if several else "mean",
        "showlegend": named,
        "legendrank": 1,
        "x": [row.step for row in band.rows],
        "y": [_drawn(row.mean, y) for row in band.rows],
        "customdata": details,
        "connectgaps": False,
        "line": {"color": theme.curve, "width": 2, "shape": "linear"},
        "hovertemplate": f"{_head(band.rows)}<br>{'mean ' if named else ''}<b>{_field('y')}</b>{extent}<extra></extra>",
    }


def _head(rows: list[Row]) -> str:
    whole = all(row.step.is_integer() for row in (rows[0], rows[-1])) if rows else True
    return f"<b>step %{{x:{',.0f' if whole else ','}}}</b>  %{{customdata[0]}}"


def _field(name: str) -> str:
    return f"%{{{name}:{_VALUE}}}"


def _end(band: Band, y: Axis, theme: Theme) -> Trace:
    """Return the last value at the line's end: a dot with its number, or the word nan at the axis."""
    mean = band.rows[-1].mean if band.rows else None
    shown = _drawn(mean, y)
    trace: Trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [band.last_step],
        "y": [y.low if shown is None else shown],
        "text": [f"<b>{'' if band.last is None else number(band.last)}</b>"],
        "textposition": "middle right",
        "textfont": {"color": theme.curve if shown is not None else theme.warn, "size": 11},
        "marker": {"color": theme.curve, "size": 6, "opacity": 0 if shown is None else 1},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return trace if band.last is not None else {**trace, "x": [], "y": [], "text": []}


def _rank_trace(line: Line, y: Axis, theme: Theme) -> Trace:
    last = "" if line.last is None else f"  {number(line.last)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"rank {line.rank}{last}",
        "x": line.steps,
        "y": [_drawn(value, y) for value in line.values],
        "customdata": [clock(moment) for moment in line.times],
        "connectgaps": False,
        "line": {"color": theme.rank_colour(line.rank), "width": 1.5, "dash": theme.rank_dash(line.rank)},
        "hovertemplate": f"<b>rank {line.rank}</b>  step %{{x:,}}  %{{customdata}}<br>{_field('y')}<extra></extra>",
    }


def _grey_traces(lines: list[Line], y: Axis, look: _Look) -> list[Trace]:
    """Return all ranks in grey (one entry in the legend) and the highlighted one in its colour, on top."""
    traces = [_rank_trace(line, y, look.theme) for line in lines]
    for trace in traces:
        trace["line"] = {"color": look.theme.grey, "width": 1}
        trace["showlegend"] = False
    if traces:
        traces[0].update(name=plural(len(lines), "rank"), showlegend=True)
    bright = [_rank_trace(line, y, look.theme) for line in lines if line.rank == look.highlight]
    for trace in bright:
        trace["line"]["width"] = 2
    return traces + bright


def _marks_trace(marks: list[Mark], y: Axis, theme: Theme) -> Trace:
    kinds = {kind: None for mark in marks for kind in mark.kinds}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": ", ".join(kinds) or "nan",
        "visible": bool(marks),
        "showlegend": bool(marks),
        "legendrank": 3,
        "x": [mark.step for mark in marks],
        "y": [y.low] * len(marks),
        "text": [f"step {count(mark.step)}: {listing(mark.kinds)} on {ranks(mark.ranks)}" for mark in marks],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.warn, "width": 2}},
    }


def _layout(plot: _Plot, theme: Theme, width: int | None, height: int | None) -> Figure:
    labels = max((len(label) for _, label in plot.y.ticks), default=1)
    text = {"family": theme.font, "size": 11, "color": theme.ink_2}
    layout = {
        "autosize": width is None,
        "width": width,
        "height": height,
        "margin": {"l": 14 + 7 * labels, "r": plot.right, "t": 10 + 18 * plot.legend_rows, "b": 26, "pad": 0},
        "font": text,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": plot.legend_rows > 0,
        "legend": _LEGEND,
        "hovermode": "x",
        "hoverlabel": {"bgcolor": theme.surface, "bordercolor": theme.border, "align": "left"},
        "xaxis": _step_axis_layout(plot.x, theme),
        "yaxis": {**_ticks(plot.y), "gridcolor": theme.grid, "gridwidth": 1, "zeroline": False},
        "annotations": [_STEP, *([{**_NOTE, "text": plot.note}] if plot.note else [])],
        "dragmode": "zoom",
    }
    layout["hoverlabel"]["font"] = {**text, "color": theme.ink}
    return {key: value for key, value in layout.items() if value is not None}


_LEGEND = {
    "orientation": "h",
    "x": 1,
    "xanchor": "right",
    "y": 1,
    "yanchor": "bottom",
    "bgcolor": "rgba(0,0,0,0)",
    "itemwidth": 30,
    "itemclick": False,
    "itemdoubleclick": False,
}
_STEP = {
    "text": "step",
    "showarrow": False,
    "xref": "paper",
    "yref": "paper",
    "x": 1,
    "y": 0,
    "xanchor": "right",
    "yanchor": "top",
    "yshift": -3,
}
_NOTE = {"showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}


def _ticks(axis: Axis) -> Figure:
    return {
        "type": "log" if axis.log else "linear",
        "range": [math.log10(axis.low), math.log10(axis.high)] if axis.log else [axis.low, axis.high],
        "tickmode": "array",
        "tickvals": [value for value, _ in axis.ticks],
        "ticktext": [label for _, label in axis.ticks],
    }


def _step_axis_layout(axis: Axis, theme: Theme) -> Figure:
    return {
        **_ticks(axis),
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": theme.axis,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 3,
        "tickcolor": theme.axis,
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "data",
        "spikedash": "2px,2px",
        "spikethickness": 1,
        "spikecolor": theme.axis,
    }


def _stand_alone(layout: Figure, metric: str, theme: Theme) -> None:
    """Say what a panel would say around the curve. The name is a user's: it is no markup."""
    layout["title"] = {
        "text": html.escape(metric),
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "top",
        "pad": {"l": 12, "t": 8},
    }
    layout["margin"]["t"] += 20
    layout["paper_bgcolor"] = layout["plot_bgcolor"] = theme.surface
    layout["annotations"] = [note for note in layout["annotations"] if note is not _STEP]
    layout["xaxis"].update(tickmode="auto", tickformat=",", title={"text": "step"})
    for key in ("tickvals", "ticktext"):
        del layout["xaxis"][key]
    layout["margin"]["b"] += 18

"""The curve of a metric as a plotly figure, made of plain dicts: used by ``job.figure()`` and by pages.

It is made without plotly, which (from 6.3 on) chooses the ticks. The colours are those of light pages; a dark page
replaces them. For one ``mode`` and set of ranks the traces have a fixed order, so that a live figure can be updated
trace by trace. Traces contain no text of users: names and hover texts are made of numbers and ranks.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distdl_jupyter.core import theme
from distdl_jupyter.core.humanize import clock, count, listing, number, plural, ranks
from distdl_jupyter.core.series import Band, Mark, RankCurve, Row, SeriesBook

Figure = dict[str, Any]
Trace = dict[str, Any]
Mode = Literal["band", "ranks"]

#: Points of all grey lines together, when there are too many ranks for colours.
_GREY_POINTS = 12_000
#: Larger values cannot be drawn with doubles and are shown at the edge.
_HUGE = 1e300
#: A number in a hover text, as d3-format: four digits, no trailing zeros.
_NUMBER = ",.4~g"


@dataclass(frozen=True, slots=True)
class Earlier:
    """The job from which this one was forked: its curves, its name, the step (None: at its end)."""

    book: SeriesBook
    name: str
    step: float | None = None


def figure(
    book: SeriesBook,
    metric: str,
    *,
    mode: Mode = "band",
    log: bool = False,
    standalone: bool = False,
    earlier: Earlier | None = None,
) -> Figure:
    """Return one metric over steps as ``{"data": [...], "layout": {...}}``; an unknown metric gives an empty plot.

    ``mode`` "band" is the mean over ranks with a band from the lowest to the highest; "ranks" is a line per rank, in
    grey above 8 ranks. ``standalone`` adds the metric's name as a title. The mean of the job ``earlier`` is drawn
    behind the curve in grey.
    """
    band = book.band(metric)
    before = earlier.book.band(metric).rows if earlier is not None else []
    values = [value for row in band.rows for value in (row.low, row.high) if value is not None]
    values += [row.mean for row in before if row.mean is not None]
    is_log = log and any(value > 0 for value in values)
    y = value_range(values, log=is_log)
    label = "" if band.last is None else number(band.last)
    lines = book.lines(metric) if mode == "ranks" else []
    coloured = len(lines) <= theme.COLOURED_RANKS
    if mode == "band":
        wide = any(row.low != row.high for row in band.rows)
        data = [
            *_band(band.rows, y[0], theme.BAND, visible=wide),
            _mean(band, with_extent=wide),
            _end(band, label, y[0]),
        ]
        legend = bool(wide or band.marks or before)
    else:
        if not coloured:
            lines = book.lines(metric, max(40, _GREY_POINTS // len(lines)))
        # Means of many values hide single values; the band behind them shows their extent.
        averaged = any(line.lows != line.highs for line in lines)
        data = [*_band(band.rows, y[0], theme.HAZE, visible=averaged), *_ranks(lines, coloured=coloured)]
        legend = len(lines) > 1 or bool(before)
    data.append(_marks(band.marks, y[0]))
    if earlier is not None and before:
        data += _branch(before, earlier)
    notes = ["from the output"] if metric in book.output_metrics else []
    notes += ["The log scale shows only values above 0."] if log and values and not is_log else []
    made = layout(
        step_range(row.step for row in (*band.rows, *before)),
        y,
        log=is_log,
        legend=legend,
        right=9 + 7 * len(label) if mode == "band" and label else 14,
        note=". ".join(notes),
        hover="x unified" if coloured else "closest",
    )
    made["uirevision"] = f"{metric}/{mode}/{log}"
    if standalone:  # the name comes from a user, so it must not be markup
        made["title"] = {"text": html.escape(metric), "x": 0, "xanchor": "left", "font": {"size": 13}}
        made["margin"]["t"] += 22
    return {"data": data, "layout": made}


# ranges ---------------------------------------------------------------------------------------


def value_range(values: Iterable[float], *, log: bool = False) -> tuple[float, float]:
    """Return the ends of the value axis, from 0 if that wastes little space; ``log`` ignores values up to 0."""
    known = [min(_HUGE, max(-_HUGE, value)) for value in values if not log or value > 1 / _HUGE] or [1.0]
    low, high = min(known), max(known)
    if log:
        return low / 1.5, high * 1.5
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1 / _HUGE):
        low, high = min(0.0, 1.25 * low), max(0.0, 1.25 * high)
    if high - low < 1 / _HUGE:
        return 0.0, 1.0
    if 0 < low <= 0.4 * high:
        low = 0.0
    if 0 > high >= 0.4 * low:
        high = 0.0
    return _rounded(low, high)


def step_range(steps: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis of steps."""
    known = [*steps] or [0.0]
    low, high = min(known), max(known)
    low = 0.0 if 0 <= low <= 0.2 * high else low
    if high - low <= 1e-12 * max(1.0, abs(low)):  # one step only
        high = low + max(1.0, 1e-6 * abs(low))
    return _rounded(low, high)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Return ends that grow in steps of a 10th to a 40th of the range, so that a live curve does not shift."""
    unit: float = 10.0 ** math.floor(math.log10(high / 2 - low / 2) - 1)
    return math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit


# traces ---------------------------------------------------------------------------------------


def line_trace(name: str, x: Sequence[float], y: Sequence[float | None], **more: Any) -> Trace:
    """Return a line with gaps where a value is None."""
    line = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y}
    return {**line, "connectgaps": False, "showlegend": True, **more}


def _points(x: Sequence[float | None], y: Sequence[float | None], marker: Trace, **more: Any) -> Trace:
    points = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker}
    return {**points, "hoverinfo": "skip", "showlegend": False, **more}


def _band(rows: Sequence[Row], floor: float, colour: str, *, visible: bool) -> list[Trace]:
    """Return the lower and the upper edge of the band; a logarithmic axis begins at ``floor``."""
    known = [(row.step, row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    x = [step for step, _, _ in known]
    lows, highs = [max(low, floor) for _, low, _ in known], [max(high, floor) for _, _, high in known]
    edge: Trace = {"line": {"width": 0}, "hoverinfo": "skip", "visible": visible}
    area: Trace = {"fill": "tonexty", "fillcolor": colour, "legendrank": 1100}
    return [line_trace("min", x, lows, showlegend=False, **edge), line_trace("min to max", x, highs, **edge, **area)]


def _mean(band: Band, *, with_extent: bool) -> Trace:
    """Return the mean over ranks; its hover text has the extent with its ranks, and the time."""
    several = len(band.ranks) > 1
    who = (", rank %{customdata[3]}", ", rank %{customdata[4]}") if several else ("", "")
    extent = f"<br>highest {_field('customdata[1]')}{who[0]}<br>lowest {_field('customdata[2]')}{who[1]}"
    hover = f"mean <b>{_field('y')}</b>{extent}" if with_extent else f"<b>{_field('y')}</b>"
    return line_trace(
        f"mean of {len(band.ranks)}" if several else "mean",
        [row.step for row in band.rows],
        [row.mean for row in band.rows],
        showlegend=with_extent,
        customdata=[[clock(row.time), row.high, row.low, row.high_rank, row.low_rank] for row in band.rows],
        line={"color": theme.CURVE, "width": 2},
        hovertemplate=f"{hover}<br>%{{customdata[0]}}<extra></extra>",
    )


def _end(band: Band, label: str, floor: float) -> Trace:
    """Return the last value at the line's end: a dot with its number, or the word nan at the axis."""
    value = band.rows[-1].mean if band.rows else None
    return _points(
        [band.last_step] if label else [],
        [floor if value is None else value] if label else [],
        {"color": theme.CURVE, "size": 6, "opacity": 0 if value is None else 1},
        mode="markers+text",
        name="last",
        text=[f"<b>{label}</b>"] if label else [],
        textposition="middle right",
        textfont={"color": theme.WARN if value is None else theme.CURVE, "size": 11},
        cliponaxis=False,
    )


def _ranks(lines: Sequence[RankCurve], *, coloured: bool) -> list[Trace]:
    """Return each rank's line with its last value in the legend, or all in grey with one entry.

    A trace's name stays the same while it grows.
    """
    traces = [
        line_trace(
            f"rank {line.rank}  %{{meta[0]}}",
            line.steps,
            line.values,
            meta=["" if line.last is None else number(line.last)],
            customdata=[clock(moment) for moment in line.times],
            showlegend=coloured,
            line={**theme.rank_line(line.rank), "width": 1.5} if coloured else {"color": theme.GREY, "width": 1},
            hovertemplate=f"rank {line.rank}  <b>{_field('y')}</b>  %{{customdata}}<extra></extra>",
        )
        for line in lines
    ]
    if not coloured:
        traces[0].update(name=plural(len(lines), "rank"), showlegend=True)
    return traces


def _branch(rows: Sequence[Row], earlier: Earlier) -> list[Trace]:
    """Return the curve of the job from which this one was forked, with a ring at that step."""
    line = line_trace(
        earlier.name,
        [row.step for row in rows],
        [row.mean for row in rows],
        legendrank=1150,
        line={"color": theme.INK_2, "width": 1},
        hovertemplate=f"{earlier.name}  {_field('y')}<extra></extra>",
    )
    before = [row.mean for row in rows if earlier.step is not None and row.step <= earlier.step]
    ring = {"symbol": "circle-open", "size": 8, "color": theme.CURVE, "line": {"width": 2}}
    return [line, _points([earlier.step], before[-1:], ring)] if before else [line]


def _marks(marks: Sequence[Mark], floor: float) -> Trace:
    """Return the crosses on the axis where values were not finite."""
    kinds = dict.fromkeys(kind for mark in marks for kind in mark.kinds)
    return _points(
        [mark.step for mark in marks],
        [floor] * len(marks),
        {"symbol": "x-thin", "size": 7, "line": {"color": theme.WARN, "width": 2}},
        name=", ".join(kinds) or "nan",
        visible=bool(marks),
        showlegend=bool(marks),
        legendrank=1200,
        text=[f"step {count(mark.step)}: {listing(mark.kinds)} on {ranks(mark.ranks)}" for mark in marks],
        hoverinfo="text",
        hovertemplate="%{text}<extra></extra>",
        cliponaxis=False,
    )


def _field(name: str) -> str:
    return f"%{{{name}:{_NUMBER}}}"


# layout ---------------------------------------------------------------------------------------


def layout(
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    log: bool = False,
    legend: bool = True,
    right: int = 14,
    note: str = "",
    hover: str = "x unified",
) -> Figure:
    """Return plotly's layout for the ends of both axes; ``right`` are the pixels beside the plot."""
    text = {"family": theme.FONT, "size": 11, "color": theme.INK_2}
    axis = {"zeroline": False, "gridcolor": theme.GRID, "automargin": True}
    corner = {
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
    }
    digits = ",.0f" if x[1].is_integer() else ","
    return {
        "autosize": True,
        "margin": {"l": 14, "r": right, "t": 10 + 18 * int(legend or bool(note)), "b": 26, "pad": 0},
        "font": text,
        "paper_bgcolor": theme.SURFACE,
        "plot_bgcolor": theme.SURFACE,
        "showlegend": legend,
        "legend": {
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "hovermode": hover,
        "hoverlabel": {"bgcolor": theme.SURFACE, "bordercolor": theme.BORDER, "font": {**text, "color": theme.INK}},
        "xaxis": {
            **axis,
            "range": [*x],
            "tickformat": ",",
            "title": {"text": "step", "standoff": 2},
            "showgrid": False,
            "showline": True,
            "linecolor": theme.AXIS,
            "ticks": "outside",
            "ticklen": 3,
            "tickcolor": theme.AXIS,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "hovered data",
            "spikedash": "2px,2px",
            "spikethickness": 1,
            "spikecolor": theme.AXIS,
            "unifiedhovertitle": {"text": f"<b>step %{{x:{digits}}}</b>"},
        },
        "yaxis": {**axis, "type": "log" if log else "linear", "range": [*map(math.log10, y)] if log else [*y]},
        "annotations": [{**corner, "text": note}] if note else [],
        "dragmode": "zoom",
    }

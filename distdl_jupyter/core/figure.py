"""The curve as a plotly figure, defined once: the kernel's panel, a browser and ``job.figure()`` draw the same dict.

Plain dicts and lists; plotly (from 6.3 on) is not needed to make them. For one ``mode`` and set of ranks the traces
stand in a fixed order, so that a live figure can be updated trace by trace. It knows curves and colours, no job and no
widget.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core.humanize import number
from distdl_jupyter.core.scale import Axis, log_axis, step_axis, value_axis
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.theme import COLOURED_RANKS, DARK, LIGHT, Theme
from distdl_jupyter.core.traces import (
    Trace,
    band_traces,
    branch_traces,
    end_trace,
    grey_traces,
    marks_trace,
    mean_trace,
    rank_trace,
)

if TYPE_CHECKING:
    from distdl_jupyter.core.curves import Row

Figure = dict[str, Any]
Mode = Literal["band", "ranks"]

#: Pixels for which margins and ticks are chosen when no size is given.
WIDTH, HEIGHT = 430, 202
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
    earlier: Earlier | None = None,
) -> Figure:
    """Return one metric over steps as ``{"data": [...], "layout": {...}}``.

    ``mode`` "band" is the mean over ranks with a band from the lowest to the highest; "ranks" is a line per rank, in
    grey above 8 ranks but for the rank ``highlight``. ``width`` and ``height`` are pixels (None: as large as its place;
    ticks are then chosen for 430 x 202). ``theme`` goes before ``dark``. ``standalone`` adds what a panel says around
    the curve: the metric's name, a background, and ticks that follow a zoom. ``earlier`` is the job from which this one
    branches: its mean stands behind, in grey. An unknown metric gives an empty plot.
    """
    chosen = theme or (DARK if dark else LIGHT)
    branch = _branch(earlier, metric)
    look = Look(chosen, log, width or WIDTH, height or HEIGHT, highlight, branch)
    plot = _band_plot(book, metric, look) if mode == "band" else _ranks_plot(book, metric, look)
    if metric in book.output_metrics:
        plot.note = ". ".join(filter(None, ("from the output", plot.note)))
    layout = layout_of(plot, chosen, width, height)
    layout["uirevision"] = f"{metric}/{mode}/{log}"
    if standalone:
        _stand_alone(layout, metric)
    return {"data": plot.traces, "layout": layout}


@dataclass(frozen=True, slots=True)
class Earlier:
    """The job from which another one branches: its curves, what it is called, the step (None: at its end)."""

    book: SeriesBook
    name: str
    step: float | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """One curve of an earlier job."""

    rows: list[Row] = field(default_factory=list)
    name: str = ""
    step: float | None = None

    @property
    def means(self) -> list[float]:
        """The values that have a place on an axis."""
        return [row.mean for row in self.rows if row.mean is not None]

    @property
    def steps(self) -> list[float]:
        """The steps of the first and the last value."""
        return [row.step for row in (*self.rows[:1], *self.rows[-1:])]


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw: colours, logarithmic values or not, pixels, the rank to show in colour."""

    theme: Theme
    log: bool
    width: int
    height: int
    highlight: int | None
    branch: Branch = field(default_factory=Branch)


def _branch(earlier: Earlier | None, metric: str) -> Branch:
    return Branch() if earlier is None else Branch(earlier.book.band(metric).rows, earlier.name, earlier.step)


@dataclass(slots=True)
class Plot:
    """Traces with their axes.

    ``right`` are the pixels beside the plot, ``legend_rows`` the lines above it, the first with the ``note``.
    """

    traces: list[Trace]
    x: Axis
    y: Axis
    right: int
    legend_rows: int
    note: str
    hover: str


def _band_plot(book: SeriesBook, metric: str, look: Look) -> Plot:
    band, theme = book.band(metric), look.theme
    values = [value for row in band.rows for value in (row.low, row.high) if value is not None]
    y, note = chosen_value_axis([*values, *look.branch.means], look)
    wide = any(row.low != row.high for row in band.rows)
    label = "" if band.last is None else number(band.last)
    traces = [
        *band_traces(band.rows, y, theme.band, visible=wide),
        mean_trace(band, y, theme, with_extent=wide),
        end_trace(band, label, y, theme),
        marks_trace(band.marks, y, theme),
        *branch_traces(look.branch.rows, look.branch.name, look.branch.step, y, theme),
    ]
    right = 9 + 7 * len(label) if label else 14
    x = steps_axis([*(row.step for row in band.rows), *look.branch.steps], look)
    legend = bool(wide or band.marks or look.branch.rows)
    return Plot(traces, x, y, right, int(legend), note, "x unified")


def _ranks_plot(book: SeriesBook, metric: str, look: Look) -> Plot:
    band, lines, theme = book.band(metric), book.lines(metric), look.theme
    coloured = len(lines) <= COLOURED_RANKS
    if not coloured:
        lines = book.lines(metric, max(40, _GREY_POINTS // len(lines)))
    # Means of many values hide what single values did: the band behind them does not.
    averaged = any(line.lows != line.highs for line in lines)
    values = [value for row in band.rows for value in (row.low, row.high) if value is not None]
    y, note = chosen_value_axis([*values, *look.branch.means], look)
    traces = [
        *band_traces(band.rows, y, theme.haze, visible=averaged),
        *([rank_trace(line, y, theme) for line in lines] if coloured else grey_traces(lines, y, theme, look.highlight)),
        marks_trace(band.marks, y, theme),
        *branch_traces(look.branch.rows, look.branch.name, look.branch.step, y, theme),
    ]
    x = steps_axis([*(step for line in lines for step in line.steps[:1] + line.steps[-1:]), *look.branch.steps], look)
    rows = legend_rows(traces, look.width - 60) if len(lines) > 1 or look.branch.rows else 0
    return Plot(traces, x, y, 14, rows, note, "x unified" if coloured else "closest")


def legend_rows(traces: list[Trace], width: int) -> int:
    """Return how many rows the legend needs: an entry is its sign, its text and some air, and rows are filled."""
    names = [trace["name"].replace("%{meta[0]}", *trace.get("meta", [""])) for trace in traces if trace["showlegend"]]
    widest = max((46 + 6 * len(name) for name in names), default=0)
    return -(-len(names) // max(1, width // widest)) if widest else 0


def chosen_value_axis(values: list[float], look: Look) -> tuple[Axis, str]:
    """Return the axis of values, and a note when it is not the one asked for."""
    most = max(2, (look.height - 50) // 30)
    axis = log_axis(values, most) if look.log else None
    if axis is not None:
        return axis, ""
    return value_axis(values, most), "The log scale shows only values above 0." if look.log and values else ""


def steps_axis(steps: list[float], look: Look) -> Axis:
    """Return the axis of these steps."""
    return step_axis(min(steps, default=0.0), max(steps, default=1.0), max(2, (look.width - 54) // 62))


def layout_of(plot: Plot, theme: Theme, width: int | None, height: int | None) -> Figure:
    """Return plotly's layout of a plot that is ``width`` x ``height`` pixels large (None: as large as its place)."""
    labels = max((len(label) for _, label in plot.y.ticks), default=1)
    text = {"family": theme.font, "size": 11, "color": theme.ink_2}
    return {
        "autosize": width is None,
        **({} if width is None else {"width": width}),
        **({} if height is None else {"height": height}),
        "margin": {
            "l": 14 + 7 * labels,
            "r": plot.right,
            "t": 10 + 18 * max(plot.legend_rows, int(bool(plot.note))),
            "b": 26,
            "pad": 0,
            "autoexpand": False,
        },
        "font": text,
        "paper_bgcolor": theme.surface,
        "plot_bgcolor": theme.surface,
        "showlegend": plot.legend_rows > 0,
        "legend": dict(_LEGEND),
        "hovermode": plot.hover,
        "hoverlabel": {"bgcolor": theme.surface, "bordercolor": theme.border, "font": {**text, "color": theme.ink}},
        "xaxis": _step_axis_layout(plot.x, theme),
        "yaxis": {**_ticks(plot.y), "gridcolor": theme.grid, "gridwidth": 1, "zeroline": False},
        "annotations": [dict(_STEP), *([{**_NOTE, "text": plot.note}] if plot.note else [])],
        "dragmode": "zoom",
    }


_LEGEND = {
    "orientation": "h",
    "x": 1,
    "xanchor": "right",
    "y": 1,
    "yref": "container",
    "yanchor": "top",
    "traceorder": "normal",
    "bgcolor": "rgba(0,0,0,0)",
    "itemwidth": 30,
    "itemclick": False,
    "itemdoubleclick": False,
}
_CORNER = {"showarrow": False, "xref": "paper", "yref": "paper"}
_STEP = {**_CORNER, "text": "step", "x": 1, "y": 0, "xanchor": "right", "yanchor": "top", "yshift": -4}
_NOTE = {**_CORNER, "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}


def _ticks(axis: Axis) -> Figure:
    return {
        "type": "log" if axis.log else "linear",
        "range": [math.log10(axis.low), math.log10(axis.high)] if axis.log else [axis.low, axis.high],
        "tickmode": "array",
        "tickvals": [value for value, _ in axis.ticks],
        "ticktext": [label for _, label in axis.ticks],
    }


def _step_axis_layout(axis: Axis, theme: Theme) -> Figure:
    digits = ",.0f" if axis.high.is_integer() else ","
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
        "spikesnap": "hovered data",
        "spikedash": "2px,2px",
        "spikethickness": 1,
        "spikecolor": theme.axis,
        "unifiedhovertitle": {"text": f"<b>step %{{x:{digits}}}</b>"},
    }


def _stand_alone(layout: Figure, metric: str) -> None:
    """Say what a panel would say around the curve. The name is a user's: it is no markup."""
    title = {"text": html.escape(metric), "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "font": {"size": 13}}
    layout["title"] = {**title, "pad": {"l": 12, "t": 8}}
    layout["margin"]["t"] += 22
    layout["margin"]["b"] += 18
    del layout["annotations"][0], layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"]
    layout["xaxis"].update(tickmode="auto", tickformat=",", title={"text": "step", "font": {"size": 11}})

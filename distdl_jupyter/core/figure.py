"""Build the plotly figure of a metric for ``job.figure()``; pages use ``labextension/src/job`` instead."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core.humanize import listing, ranks
from distdl_jupyter.core.series import Band, Row, SeriesBook


@dataclass(frozen=True, slots=True)
class Earlier:
    """The job from which this job was forked: its curves, its name and the step of the fork (None: its end)."""

    book: SeriesBook
    name: str
    step: float | None = None


def figure(
    book: SeriesBook, metric: str, *, each_rank: bool = False, log: bool = False, earlier: Earlier | None = None
) -> dict[str, Any]:
    """Return one metric over steps as ``{"data": [...], "layout": {...}}``; an unknown metric gives an empty plot.

    The figure shows the mean over ranks with a band from minimum to maximum, or one line per rank; the mean of the job
    ``earlier`` is grey. Only the title contains text of a user. It is escaped, because plotly renders markup.
    """
    band = book.band(metric)
    lines = [_line(f"rank {line.rank}", line.steps, line.values) for line in book.lines(metric)] if each_rank else []
    name = f"mean of {len(band.ranks)}" if len(band.ranks) > 1 else "mean"
    data = [*_extent(band.rows), *(lines or [_mean(band.rows, name)])]
    if earlier is not None and (rows := earlier.book.band(metric).rows):
        data.append({**_mean(rows, earlier.name), "line": {"color": "grey", "width": 1}})
    layout = {
        "title": {"text": html.escape(metric)},
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"type": "log" if log else "linear"},
        "annotations": [_mark_note(band)] if band.marks else [],
        "hovermode": "x unified",
    }
    return {"data": data, "layout": layout}


def _line(name: str, x: Sequence[float], y: Sequence[float | None], **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **more}


def _mean(rows: Sequence[Row], name: str) -> dict[str, Any]:
    return _line(name, [row.step for row in rows], [row.mean for row in rows])


def _extent(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return both edges of the band, hidden if the ranks do not differ."""
    finite = [row for row in rows if row.low is not None]
    x, edge = [row.step for row in finite], {"line": {"width": 0}, "hoverinfo": "skip"}
    visible = any(row.low != row.high for row in finite)
    lows = _line("min", x, [row.low for row in finite], visible=visible, showlegend=False, **edge)
    fill = {"fill": "tonexty", "fillcolor": "rgba(25,118,210,0.22)"}
    return [lows, _line("min to max", x, [row.high for row in finite], visible=visible, **edge, **fill)]


def _mark_note(band: Band) -> dict[str, Any]:
    """Return a note below the title that says where values were not finite."""
    first = band.marks[0]
    text = f"{listing(first.kinds)} on {ranks(first.ranks)} from step {first.step:g} on"
    return {"text": text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1, "yanchor": "bottom"}

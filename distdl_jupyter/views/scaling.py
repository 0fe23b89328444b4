"""How training scales, as text, as HTML, as a figure and as a table; a notebook shows the panel (``scaling_panel``)."""

from __future__ import annotations

import dataclasses
import importlib
from html import escape
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import count, number
from distdl_jupyter.core.scaling import Forecast, Point, Scaling
from distdl_jupyter.views import scaling_panel, table
from distdl_jupyter.views.scaling_panel import Facts, Finding, batch_of, forecasts, learning_rate, milliseconds, shown

if TYPE_CHECKING:
    import pandas as pd

    from distdl_jupyter.views.schema import ScalingPanel

_COLOURS, _MARKS = ("#0D47A1", "#212121", "#00695C", "#8E24AA"), ("circle", "square", "diamond", "triangle-up")


class ScalingShown(Scaling):
    """A scaling as a notebook shows it: ``print``, display, ``table``, ``figure``, ``forecast(n)``."""

    #: What is known of the study besides its points; None for points of no study.
    facts: Facts | None = None

    def __str__(self) -> str:
        if not self.points:
            return "\n".join(filter(None, (self._head, "No measurements yet.")))
        mode = scaling_panel.scaling_mode(self)
        known = self.panel.prices if self.facts else ()
        prices = [f"{one.size}: {one.cost:.3g} {one.currency} per epoch" for one in known]
        parts = (self._head, self.finding, table.text(self._rows()), *prices, scaling_panel.forecast_text(self),
                 scaling_panel.note(self, self.facts, mode))  # fmt: skip
        return "\n".join(filter(None, parts))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        note = scaling_panel.note(self, self.facts, scaling_panel.scaling_mode(self))
        rows = table.html(self._rows()) if self.points else ""
        return f"<p><b>{escape(self.finding)}</b></p>{rows}<p>{escape(note)}</p>"

    def _ipython_display_(self) -> None:
        # By name: what draws the panel stands above this floor.
        importlib.import_module("distdl_jupyter.widgets.scaling").show(self)

    def resume(self) -> ScalingShown:
        """Resume an interrupted study: keep its measurements and run the missing ones.

        Raises JobStillRunning, JobNotRunning where nothing is missing, JobNotFound when its runs are gone, InvalidSpec
        where a secret variable is missing, and what ``scale`` does.
        """
        # By name: what drives a study stands above this floor.
        found: ScalingShown = importlib.import_module("distdl_jupyter.scaling").resume(self.id)
        return found

    @property
    def panel(self) -> ScalingPanel:
        """Return the content of the panel as plain data."""
        assert self.facts is not None
        return scaling_panel.panel(self, self.facts)

    @property
    def id(self) -> str:
        """Return the id of the study, or "" for points that belong to no study."""
        return self.facts.id if self.facts else ""

    @property
    def _head(self) -> str:
        if self.facts is None:
            return ""
        title, about = f"Scaling of {self.name} ({self.id}): {self.facts.state.value}", self.panel
        return " · ".join((title, *about.words, about.summary))

    @property
    def unit(self) -> str:
        """Return the unit of the rates: samples, or batches if the batch size is unknown."""
        return scaling_panel.unit(self)

    @property
    def finding(self) -> str:
        """Return the bottleneck of the first backend at its highest number of processes."""
        found = Finding.of(self, self.facts)
        if found is not None:
            return " ".join(filter(None, (found.headline, found.reason)))
        return "Only one number of processes has been measured." if self.points else "No measurements yet."

    def best(self) -> Point:
        """Return the point with the highest rate. Raises ValueError if nothing was measured."""
        return max(self.points, key=lambda one: one.rate)

    @property
    def table(self) -> pd.DataFrame:
        """Return one row per backend and number of processes, measured and forecast; times are in seconds."""
        import pandas as pd

        every = self._shown()
        rows = [
            {**dataclasses.asdict(one), "efficiency": self.efficiency(one), "measured": isinstance(one, Point),
             "error": one.error, "learning_rate": learning_rate(self, one, self.facts)}
            for one in every
        ]  # fmt: skip
        return pd.DataFrame(rows).drop(columns=["low", "high"], errors="ignore").dropna(axis="columns", how="all")

    @property
    def figure(self) -> Any:
        """Return a plotly Figure of rates over processes with the ideal line, and of forecasts with their error."""
        import plotly.graph_objects as go

        figure = go.Figure()
        for at, backend in enumerate(self.backends):
            colour, mark = _COLOURS[at % len(_COLOURS)], _MARKS[at % len(_MARKS)]
            points = self.of(backend)
            figure.add_scatter(
                x=[one.processes for one in points], y=[one.rate for one in points], name=backend,
                mode="lines+markers", line={"color": colour}, marker={"symbol": mark, "size": 9},
                error_y={"array": [one.error for one in points]},
                customdata=[100 * self.efficiency(one) for one in points],
                hovertemplate="%{x} processes: %{y:.4s}, %{customdata:.0f} % of ideal",
            )  # fmt: skip
            self._draw_forecasts(figure, points, colour, mark)
        first = self.of(self.backends[0])[0]
        ends = [first.processes, max(one.processes for one in self._shown())]
        figure.add_scatter(x=ends, y=[first.rate * end / first.processes for end in ends], mode="lines", name="ideal",
                           line={"color": "#757575", "dash": "dash", "width": 1}, hoverinfo="skip")  # fmt: skip
        ticks = sorted({one.processes for one in self._shown()})
        figure.update_layout(
            template="simple_white", height=380, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
            xaxis={"title": "processes", "type": "log", "tickvals": ticks, "ticktext": list(map(str, ticks))},
            yaxis={"title": f"{self.unit} per second", "type": "log"},
        )  # fmt: skip
        return figure

    def _draw_forecasts(self, figure: Any, points: list[Point], colour: str, mark: str) -> None:
        found = forecasts(self, points[0].backend)
        if not found:
            return
        x, last = [points[-1].processes, *(one.processes for one in found)], points[-1]
        low, high = [last.rate, *(one.low for one in found)], [last.rate, *(one.high for one in found)]
        figure.add_scatter(x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=colour, opacity=0.16,
                           line={"width": 0}, hoverinfo="skip", showlegend=False)  # fmt: skip
        figure.add_scatter(
            x=x, y=[last.rate, *(one.rate for one in found)], mode="lines+markers", name=f"{last.backend}, forecast",
            line={"color": colour, "dash": "dot"}, marker={"symbol": f"{mark}-open", "size": [0, *[9] * len(found)]},
            customdata=[0.0, *(100 * one.efficiency for one in found)],
            hovertemplate="%{x} processes: about %{y:.4s}, %{customdata:.0f} % of ideal",
        )  # fmt: skip

    def _shown(self) -> list[Point | Forecast]:
        found: list[Point | Forecast] = []
        for backend in self.backends:
            found += [*self.of(backend), *forecasts(self, backend)]
        return found

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("processes", "backend", f"{self.unit}/s", "efficiency", "computation", "communication", "waiting",
                "batch", "lr")  # fmt: skip
        return [head, *map(self._row, shown(self))]

    def _row(self, one: Point | Forecast) -> tuple[str, ...]:
        share = 100 * self.efficiency(one)
        rate, efficiency = f"{number(one.rate)} ± {number(one.error)}", f"{share:.0f} %"
        if isinstance(one, Forecast):
            rate = f"about {rate}"
            efficiency = f"{share:.0f} ± {100 * one.error / one.rate * self.efficiency(one):.0f} %"
        times = map(milliseconds, (one.own, one.communication, one.waiting))
        batch, lr = batch_of(self, one), learning_rate(self, one, self.facts)
        backend = one.backend if isinstance(one, Point) else f"{one.backend}, forecast"
        return (count(one.processes), backend, rate, efficiency, *times, "" if batch is None else count(round(batch)),
                "" if lr is None else f"{lr:.4g}")  # fmt: skip


def displayable(scaling: Scaling) -> ScalingShown:
    """Return the same as a notebook shows it."""
    return ScalingShown(scaling.name, scaling.points)

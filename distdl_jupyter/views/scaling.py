"""How training scales, as text, as HTML that a saved notebook keeps, as a figure and as a table."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import count, number
from distdl_jupyter.core.scaling import Forecast, Point, Scaling
from distdl_jupyter.views import table

if TYPE_CHECKING:
    import pandas as pd

#: Times that the most processes are doubled in the forecast that is drawn.
_DOUBLINGS = 2
_COLOURS, _MARKS = ("#0D47A1", "#212121", "#00695C", "#8E24AA"), ("circle", "square", "diamond", "triangle-up")


class ScalingShown(Scaling):
    """A scaling as a notebook shows it: ``print``, display, ``table``, ``figure``, ``forecast(n)``."""

    def __str__(self) -> str:
        return "\n".join([self.finding, table.text(self._rows()), self._note])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.finding)}</b></p>{table.html(self._rows())}<p>{escape(self._note)}</p>"

    @property
    def unit(self) -> str:
        """What is counted: samples, or batches where the size of a batch was not seen."""
        return "samples" if all(one.counts_samples for one in self.points) else "batches"

    @property
    def finding(self) -> str:
        """One sentence about the most processes of the first backend."""
        points = self.of(self.backends[0])
        last = points[-1]
        said = f"{count(last.processes)} processes reach {self.efficiency(last):.0%} of ideal"
        lost = {"communication": last.communication, "waiting for others": last.waiting,
                "own work that takes longer than on fewer processes": last.own - points[0].own}  # fmt: skip
        worst = max(lost, key=lambda one: lost[one])
        step = last.own + last.communication + last.waiting
        if len(points) == 1 or lost[worst] < 0.03 * step:
            return f"{said}."
        return f"{said}: {_milliseconds(lost[worst])} of {_milliseconds(step)} ms a step are {worst}."

    @property
    def _note(self) -> str:
        rule = "Twice the processes take twice the learning rate by the linear rule (Goyal et al., 2017)."
        return f"Own work, communication and waiting: ms a step, median of the ranks. {rule}"

    @property
    def table(self) -> pd.DataFrame:
        """A row for each backend and number of processes, measured ones and forecasts; times in seconds."""
        import pandas as pd

        rows = [
            {**dataclasses.asdict(one), "efficiency": self.efficiency(one), "measured": isinstance(one, Point)}
            for one in self._shown()
        ]
        for row, one in zip(rows, self._shown(), strict=True):
            row["error"] = one.error
        return pd.DataFrame(rows).drop(columns=["low", "high"], errors="ignore")

    @property
    def figure(self) -> Any:
        """A plotly Figure: rates over processes beside the ideal line, and forecasts with their error."""
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
            yaxis={"title": f"{self.unit} a second", "type": "log"},
        )  # fmt: skip
        return figure

    def _draw_forecasts(self, figure: Any, points: list[Point], colour: str, mark: str) -> None:
        found = self._forecasts(points)
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

    def _forecasts(self, points: list[Point]) -> list[Forecast]:
        if len(points) < 2:
            return []
        return [self.forecast(points[-1].processes * 2**one, points[0].backend) for one in range(1, _DOUBLINGS + 1)]

    def _shown(self) -> list[Point | Forecast]:
        found: list[Point | Forecast] = []
        for backend in self.backends:
            points = self.of(backend)
            found += [*points, *self._forecasts(points)]
        return found

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("processes", "backend", f"{self.unit}/s", "efficiency", "own work", "communication", "waiting", "batch")
        return [head, *map(self._row, self._shown())]

    def _row(self, one: Point | Forecast) -> tuple[str, ...]:
        share = 100 * self.efficiency(one)
        rate, efficiency = f"{number(one.rate)} ± {number(one.error)}", f"{share:.0f} %"
        if isinstance(one, Forecast):
            rate = f"about {rate}"
            efficiency = f"{share:.0f} ± {100 * one.error / one.rate * self.efficiency(one):.0f} %"
        times = map(_milliseconds, (one.own, one.communication, one.waiting))
        batch = count(round(one.batch)) if isinstance(one, Point) else ""
        backend = one.backend if isinstance(one, Point) else f"{one.backend}, forecast"
        return (count(one.processes), backend, rate, efficiency, *times, batch)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"


def displayable(scaling: Scaling) -> ScalingShown:
    """Return the same as a notebook shows it."""
    return ScalingShown(scaling.name, scaling.points)

"""How training scales: the sentences, a DataFrame and a plotly figure of a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core import table
from distdl_jupyter.core.humanize import count, duration, listing, number, plural
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import Scaling, ScalingPoint, Straggler

if TYPE_CHECKING:
    import pandas as pd

_COLOURS, _MARKS = ("#0D47A1", "#212121", "#00695C", "#8E24AA"), ("circle", "square", "diamond", "triangle-up")
#: The share of a step below which a loss is not worth a sentence.
_LEAST = 0.03
#: How far batches may be from those of weak or strong scaling, as a share.
_LIKE = 0.1
NOT_COMPARABLE = "not comparable"
_NOTE = "Computation, communication and waiting are in ms per step, median of the ranks."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a study besides its points. ``done`` of ``size`` points are measured, in ``seconds``.

    ``stragglers`` are by backend and number of processes.
    """

    id: str
    state: State
    #: Why it ended before its time, "" where it did not or nobody knows.
    problem: str = ""
    target: str = ""
    hosts: tuple[str, ...] = ()
    done: int = 0
    size: int = 0
    runs: int = 0
    seconds: float = 0.0
    processes: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    stragglers: Mapping[tuple[str, int], Straggler] = field(default_factory=dict)


class ScalingView(table.Display, Scaling):
    """A scaling as a notebook shows it: ``print``, display, ``table``, ``figure``."""

    #: What is known of the study besides its points; None for points of no study.
    facts: Facts | None = None

    def _parts(self) -> list[str | table.Rows]:
        return [*self._head, *self.sentences, *([self._rows(), _NOTE] if self.points else [])]

    @property
    def id(self) -> str:
        """Return the id of the study, or "" for points that belong to no study."""
        return self.facts.id if self.facts else ""

    @property
    def unit(self) -> Literal["samples", "batches"]:
        """Return the unit of the rates: samples, or batches if the batch size is unknown."""
        return "samples" if all(point.counts_samples for point in self.points) else "batches"

    @property
    def mode(self) -> Literal["weak", "strong", ""]:
        """Return "weak" if each process has a batch of one size, "strong" if all share one, "" for neither."""
        points = self.of(self.backends[0]) if self.points else []
        if len(points) < 2 or self.unit != "samples":
            return ""
        first = points[0]
        ratios = [(point.batch / first.batch, point.processes / first.processes) for point in points[1:]]
        if all(abs(batch / processes - 1) <= _LIKE for batch, processes in ratios):
            return "weak"
        return "strong" if all(abs(batch - 1) <= _LIKE for batch, _ in ratios) else ""

    @property
    def sentences(self) -> list[str]:
        """Return which points are not comparable and why, then where the time of the largest run goes."""
        if len(self.points) == len(self.backends):
            return ["Only one number of processes has been measured." if self.points else "No measurements yet."]
        return [*filter(None, map(self.why_not_comparable, self.points)), *filter(None, [self._finding()])]

    def why_not_comparable(self, point: ScalingPoint) -> str:
        """Return why the efficiency of a point would say nothing, "" if the point is comparable."""
        if self.efficiency(point) is not None:
            return ""
        first = self.of(point.backend)[0]
        ratio = (point.rate / point.processes) / (first.rate / first.processes)
        each = first.batch / first.processes, point.batch / point.processes
        before, after = plural(first.processes, "process"), plural(point.processes, "process")
        if abs(each[1] / each[0] - 1) > _LIKE:
            reason = f"The batch of a process differs: {number(each[0])} with {before}, {number(each[1])} with {after}."
        else:
            reason = (
                f"The computation of a step took {milliseconds(first.own)} ms with {before} and "
                f"{milliseconds(point.own)} ms with {after}, for example because other programs used the machine. "
                "Measure again while the machine is otherwise idle."
            )
        return (
            f"{after} of {point.backend} are {NOT_COMPARABLE} with {before}, because each process would be "
            f"{number(ratio)} times as fast. {reason}"
        )

    def _finding(self) -> str:
        """Return what limits the most processes of the first backend."""
        points = self.of(self.backends[0])
        first, last = points[0], points[-1]
        share = self.efficiency(last)
        if len(points) < 2 or share is None:
            return ""
        reached = f"{count(last.processes)} processes reach {100 * share:.0f} % of ideal."
        return f"{reached} {self._lost_time(first, last)}".rstrip()

    def _lost_time(self, first: ScalingPoint, last: ScalingPoint) -> str:
        step = last.own + last.communication + last.waiting
        straggler = self.facts.stragglers.get((last.backend, last.processes)) if self.facts else None
        lost = {"communication": last.communication, "waiting": last.waiting, "own": last.own - first.own}
        worst = max(lost, key=lambda name: lost[name])
        seconds = lost[worst]
        if straggler is not None and straggler.seconds >= max(_LEAST * step, lost["own"], lost["communication"]):
            what = "sending data of rank {} over its link" if straggler.cause == "link" else "waiting for rank {}"
            seconds, step = straggler.seconds, last.batch / last.rate
            where = f"spent {what.format(straggler.rank)}"
        elif seconds < _LEAST * step:
            return ""
        else:
            where = {
                "communication": "spent on communication",
                "waiting": "spent waiting for other ranks, not always the same one",
                "own": f"additional computation compared with {plural(first.processes, 'process')}, for example "
                "because processes share cores",
            }[worst]
        return f"{milliseconds(seconds)} of {milliseconds(step)} ms per step are {where}."

    @property
    def _head(self) -> list[str]:
        """Return one line on the study: where it ran, with which processes and batches, and how far it is."""
        facts = self.facts
        if facts is None:
            return []
        hosts = ", ".join(facts.hosts[:4]) + (" ..." if len(facts.hosts) > 4 else "")
        runs = f"{plural(facts.runs, 'short run')}, {duration(facts.seconds)}"
        parts = (
            f"Scaling of {self.name} ({self.id}): {facts.state.value}",
            f"{facts.target}: {hosts}" if hosts and facts.target != "local" else facts.target,
            f"{listing(facts.processes)} processes" if facts.processes else "",
            listing(facts.backends),
            self._batches(),
            runs if facts.done == facts.size else f"{facts.done} of {facts.size} measured, {runs}",
            facts.problem,
        )
        return [" · ".join(filter(None, parts))]

    def _batches(self) -> str:
        if not self.mode:
            return ""
        first = self.of(self.backends[0])[0]
        if self.mode == "weak":
            return f"weak scaling: batch of {count(round(first.batch / first.processes))} per process"
        return f"strong scaling: total batch of {count(round(first.batch))}"

    def best(self) -> ScalingPoint:
        """Return the point with the highest rate. Raises ValueError if nothing was measured."""
        return max(self.points, key=lambda point: point.rate)

    @property
    def table(self) -> pd.DataFrame:
        """Return one row per backend and number of processes; times are in seconds.

        ``efficiency`` is missing where runs are not comparable; ``not_comparable`` says why.
        """
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    **dataclasses.asdict(point),
                    "efficiency": self.efficiency(point),
                    "not_comparable": self.why_not_comparable(point),
                }
                for point in self.points
            ]
        )

    @property
    def figure(self) -> Any:
        """Return a plotly Figure of the measured rates over processes, with the ideal line."""
        import plotly.graph_objects as go

        figure = go.Figure()
        for at, backend in enumerate(self.backends):
            colour, mark = _COLOURS[at % len(_COLOURS)], _MARKS[at % len(_MARKS)]
            points = self.of(backend)
            figure.add_scatter(
                x=[point.processes for point in points],
                y=[point.rate for point in points],
                name=backend,
                mode="lines+markers",
                line={"color": colour},
                marker={"symbol": mark, "size": 9},
                error_y={"array": [point.error for point in points]},
                customdata=[self._share(point) for point in points],
                hovertemplate="%{x} processes: %{y:.4s}, %{customdata}",
            )
        ticks = sorted({point.processes for point in self.points})
        if self.points:
            first = self.of(self.backends[0])[0]
            ideal = [first.rate * end / first.processes for end in (ticks[0], ticks[-1])]
            figure.add_scatter(
                x=[ticks[0], ticks[-1]],
                y=ideal,
                mode="lines",
                name="ideal",
                hoverinfo="skip",
                line={"color": "#757575", "dash": "dash", "width": 1},
            )
        figure.update_layout(
            template="simple_white",
            height=380,
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
            xaxis={"title": "processes", "type": "log", "tickvals": ticks, "ticktext": list(map(str, ticks))},
            yaxis={"title": f"{self.unit} per second", "type": "log"},
        )
        return figure

    def _share(self, point: ScalingPoint) -> str:
        share = self.efficiency(point)
        return NOT_COMPARABLE if share is None else f"{100 * share:.0f} % of ideal"

    def _rows(self) -> list[tuple[str, ...]]:
        head = (
            "processes",
            "backend",
            f"{self.unit}/s",
            "efficiency",
            "computation",
            "communication",
            "waiting",
            "batch",
        )
        order = self.backends
        points = sorted(self.points, key=lambda point: (point.processes, order.index(point.backend)))
        return [head, *map(self._row, points)]

    def _row(self, point: ScalingPoint) -> tuple[str, ...]:
        times = map(milliseconds, (point.own, point.communication, point.waiting))
        return (
            count(point.processes),
            point.backend,
            f"{number(point.rate)} ± {number(point.error)}",
            self._share(point).removesuffix(" of ideal"),
            *times,
            count(round(point.batch)),
        )


def milliseconds(seconds: float) -> str:
    """Return a time in ms without the unit, with a tenth below 100."""
    return f"{1000 * seconds:.1f}" if seconds < 0.09995 else count(round(1000 * seconds))

"""Displays a scaling study as text, a table, a DataFrame or a plotly figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core import humanize
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import count, duration, number, plural
from distdl_jupyter.core.step_times import Scaling, ScalingPoint, Straggler

if TYPE_CHECKING:
    import pandas as pd

#: The minimum share of a step (0 to 1) of a bottleneck that is mentioned.
_MIN_SHARE = 0.03
#: The relative tolerance of batch sizes that count as equal.
_BATCH_TOLERANCE = 0.1
NOT_COMPARABLE = "not comparable"
_NOTE = (
    "Computation, communication and waiting are in ms per step, median of the ranks. The error of a rate is estimated "
    "from parts of its run."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """The data of a study other than its points: ``done`` of ``size`` points were measured in ``seconds``.

    ``problem`` is the reason why the study was interrupted, or "" if it was not. ``stragglers`` maps a backend
    and a number of processes to the straggler.
    """

    id: str
    state: State
    problem: str = ""
    target: str = ""
    done: int = 0
    size: int = 0
    runs: int = 0
    seconds: float = 0.0
    stragglers: Mapping[tuple[str, int], Straggler] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class ScalingView(humanize.Display, Scaling):
    """A scaling study: print or display it, or use ``table`` and ``figure``. ``info`` is None outside a study."""

    info: StudyInfo | None = None

    def _parts(self) -> list[str | humanize.Rows]:
        heading = [self._format_heading(self.info)] if self.info else []
        return [*heading, *self.sentences, *([self._make_rows(), _NOTE] if self.points else [])]

    @property
    def id(self) -> str:
        """The id of the study, or "" if the points do not belong to one."""
        return self.info.id if self.info else ""

    @property
    def unit(self) -> Literal["samples", "batches"]:
        """The unit of the rates: samples, or batches if the size of a batch is unknown."""
        return "samples" if all(point.counts_samples for point in self.points) else "batches"

    @property
    def mode(self) -> Literal["weak", "strong", ""]:
        """The mode: "weak" if the batch size per process is constant, "strong" if the total batch size is, or ""."""
        points = self.of(self.backends[0]) if self.points else []
        if len(points) < 2 or self.unit != "samples":
            return ""
        first = points[0]
        growth = [(point.batch / first.batch, point.processes / first.processes) for point in points[1:]]
        if all(abs(batch / processes - 1) <= _BATCH_TOLERANCE for batch, processes in growth):
            return "weak"
        return "strong" if all(abs(batch - 1) <= _BATCH_TOLERANCE for batch, _ in growth) else ""

    @property
    def sentences(self) -> list[str]:
        """Sentences about points that are not comparable, then about the bottleneck of the largest run."""
        if len(self.points) == len(self.backends):
            return ["Only one number of processes has been measured." if self.points else "No measurements yet."]
        return [*filter(None, map(self.why_not_comparable, self.points)), *filter(None, [self._describe_bottleneck()])]

    def why_not_comparable(self, point: ScalingPoint) -> str:
        """Return why a point is not comparable and thus has no efficiency, or "" if it has one."""
        if self.efficiency(point) is not None:
            return ""
        first = self.of(point.backend)[0]
        ratio = (point.rate / point.processes) / (first.rate / first.processes)
        batches = first.batch / first.processes, point.batch / point.processes
        before, after = plural(first.processes, "process"), plural(point.processes, "process")
        reason = "For example, other programs used the machine. Measure again while it is otherwise idle."
        if abs(batches[1] / batches[0] - 1) > _BATCH_TOLERANCE:
            first_batch, batch = map(number, batches)
            reason = f"The batch size per process differs: {first_batch} with {before}, {batch} with {after}."
        return (
            f"{after} of {point.backend} are {NOT_COMPARABLE} with {before}, because each process would be "
            f"{number(ratio)} times as fast. {reason}"
        )

    def _describe_bottleneck(self) -> str:
        """Return a sentence about the bottleneck of the first backend with the most processes."""
        points = self.of(self.backends[0])
        first, last = points[0], points[-1]
        share = self.efficiency(last)
        if first is last or share is None:
            return ""
        summary = f"{count(last.processes)} processes reach {100 * share:.0f} % of ideal."
        step = last.busy + last.communication + last.waiting
        losses = {
            "spent on communication": last.communication,
            "spent waiting for other ranks, not always the same one": last.waiting,
            f"additional computation compared with {plural(first.processes, 'process')}, for example because "
            "processes share cores": last.busy - first.busy,
        }
        cause, seconds = max(losses.items(), key=lambda part: part[1])
        straggler = self.info.stragglers.get((last.backend, last.processes)) if self.info else None
        threshold = max(_MIN_SHARE * step, last.busy - first.busy, last.communication)
        if straggler is not None and straggler.seconds >= threshold:
            cause = f"spent waiting for rank {straggler.rank}"
            seconds, step = straggler.seconds, last.batch / last.rate
        elif seconds < _MIN_SHARE * step:
            return summary
        return f"{summary} {format_milliseconds(seconds)} of {format_milliseconds(step)} ms per step are {cause}."

    def _format_heading(self, info: StudyInfo) -> str:
        """Return one line with the name, state, target, mode and progress of the study."""
        runs = f"{plural(info.runs, 'short run')}, {duration(info.seconds)}"
        parts = (
            f"Scaling of {self.name} ({info.id}): {info.state.value}",
            info.target,
            f"{self.mode} scaling" if self.mode else "",
            runs if info.done == info.size else f"{info.done} of {info.size} measured, {runs}",
            info.problem,
        )
        return " · ".join(filter(None, parts))

    def best(self) -> ScalingPoint:
        """Return the point with the highest rate. Raises ValueError if nothing was measured."""
        return max(self.points, key=lambda point: point.rate)

    @property
    def table(self) -> pd.DataFrame:
        """A DataFrame with one row per backend and number of processes. Times are in seconds.

        ``efficiency`` is missing if the runs are not comparable; ``not_comparable`` is the reason.
        """
        import pandas as pd

        rows = [
            {name: getattr(point, name) for name in ("backend", "processes", "nodes")}
            | asdict(point)
            | {"efficiency": self.efficiency(point), "not_comparable": self.why_not_comparable(point)}
            for point in self.points
        ]
        return pd.DataFrame(rows)

    @property
    def figure(self) -> Any:
        """A plotly Figure of the rate over the number of processes, with the line of ideal scaling."""
        import plotly.graph_objects as go

        figure = go.Figure()
        for backend in self.backends:
            points = self.of(backend)
            figure.add_scatter(
                x=[point.processes for point in points],
                y=[point.rate for point in points],
                name=backend,
                error_y={"array": [point.error for point in points]},
                customdata=[self._format_share(point) for point in points],
                hovertemplate="%{x} processes: %{y:.4s}, %{customdata}",
            )
        ticks = sorted({point.processes for point in self.points})
        if self.points:
            first, ends = self.of(self.backends[0])[0], [ticks[0], ticks[-1]]
            ideal = [first.rate * end / first.processes for end in ends]
            figure.add_scatter(x=ends, y=ideal, mode="lines", name="ideal", line={"color": "grey", "dash": "dash"})
        figure.update_xaxes(title="processes", type="log", tickvals=ticks, ticktext=list(map(str, ticks)))
        return figure.update_yaxes(title=f"{self.unit} per second", type="log")

    def _format_share(self, point: ScalingPoint) -> str:
        share = self.efficiency(point)
        return NOT_COMPARABLE if share is None else f"{100 * share:.0f} % of ideal"

    def _make_rows(self) -> list[tuple[str, ...]]:
        times, backends = ("computation", "communication", "waiting"), self.backends
        rows = [
            (
                count(point.processes),
                point.backend,
                f"{number(point.rate)} ± {number(point.error)}",
                self._format_share(point).removesuffix(" of ideal"),
                *map(format_milliseconds, (point.busy, point.communication, point.waiting)),
                count(round(point.batch)),
            )
            for point in sorted(self.points, key=lambda point: (point.processes, backends.index(point.backend)))
        ]
        return [("processes", "backend", f"{self.unit}/s", "efficiency", *times, "batch"), *rows]


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds without the unit, with one decimal below 100 ms."""
    return f"{1000 * seconds:.1f}" if seconds < 0.09995 else count(round(1000 * seconds))

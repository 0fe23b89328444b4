"""The resource usage of ranks and machines as a table for a notebook or a terminal, as data and as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.resources import (
    NodeHardware,
    NodeUsage,
    RankUsage,
    ResourceHistory,
    ResourceProblem,
    ResourceSample,
)
from distdl_jupyter.core.series import RankCurve

if TYPE_CHECKING:
    import pandas as pd

# Numbers of points that are sent every 2 s: per curve, and for all curves of a resource.
_MIN_POINTS, _MAX_POINTS = 16, 80
_MAX_TOTAL_POINTS = 1600
_HEADER = ("Rank", "Host", "CPU, % of a core", "Memory", "GPU", "GPU memory", "Tensors on GPU", "Power", "Free on host",
         "Disk of host", "Network of host")  # fmt: skip
_NO_SAMPLES_YET = "No samples yet. The first is taken one second after the first rank has started."
_NO_SAMPLES = "No samples. The job ran for less than a second, or ran on Azure ML."


@dataclass(frozen=True, slots=True)
class Resources:
    """The newest samples, the machines by node, the current problems (the most severe first), and curves by name.

    Curves are over seconds since the first sample. The curves of a machine are listed under its first rank.
    """

    samples: tuple[ResourceSample, ...]
    about: dict[int, NodeHardware]
    marks: tuple[ResourceProblem, ...]
    strips: dict[str, tuple[RankCurve, ...]]


class ResourceTable(humanize.Display, list[ResourceSample]):
    """All samples of a job in order, displayed as the newest sample of each rank, or as the reason if there is none."""

    def __init__(self, path: Path, *, is_pending: bool = False) -> None:
        self._empty_text = _NO_SAMPLES_YET if is_pending else _NO_SAMPLES
        self.history = ResourceHistory(path)
        super().__init__(self.history.read())

    @property
    def marks(self) -> list[ResourceProblem]:
        """The problems at the last sample."""
        return self.history.find_problems()

    def _parts(self) -> list[str | humanize.Rows]:
        return [self._make_rows(), *(mark.text for mark in self.marks)] if self else [self._empty_text]

    def _make_rows(self) -> list[tuple[str, ...]]:
        """Return a row for each rank; the usage of a host is in the row of its first rank."""
        rows: list[tuple[str, ...]] = [_HEADER]
        node: int | None = None
        for rank, (sample, usage) in sorted(self.history.ranks.items()):
            machine = sample.machine
            power = "" if usage.power is None else f"{usage.power:.0f} W"
            memory = _format_size(machine.available, machine.limit)
            disk = _format_rate(machine.disk_read, machine.disk_written)
            network = _format_rate(machine.received, machine.sent)
            host_cells = (memory, disk, network) if sample.node != node else ("", "", "")
            rows.append((str(rank), self._get_host(sample), _format_percent(usage.cpu), _format_size(usage.memory),
                         _format_percent(usage.gpu), _format_size(usage.gpu_memory, usage.gpu_limit),
                         _format_size(usage.torch_allocated), power, *host_cells))  # fmt: skip
            node = sample.node
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per sample and rank: ``time`` (UTC), ``rank``, ``host``, usage of the rank and of its node.

        Units are percent, bytes, watts and bytes per second; values that the system does not report are NaN.
        """
        import pandas as pd

        rows = [
            {
                "time": sample.t,
                "rank": rank,
                "host": self._get_host(sample),
                **asdict(usage),
                **{f"node_{name}": value for name, value in asdict(sample.machine).items()},
            }
            for sample in self
            for rank, usage in sorted(sample.ranks.items())
        ]
        numbers = [*RankUsage.__dataclass_fields__, *(f"node_{name}" for name in NodeUsage.__dataclass_fields__)]
        frame = pd.DataFrame(rows, columns=["time", "rank", "host", *numbers]).astype(dict.fromkeys(numbers, "float64"))
        return frame.assign(time=pd.to_datetime(frame["time"], unit="s", utc=True))

    def figure(self) -> Any:
        """Return a plotly Figure of the curves over seconds, with one line per rank; units as in the table."""
        from plotly.subplots import make_subplots

        names = self.history.curve_names
        height = max(1, len(names))
        figure = make_subplots(rows=height, cols=1, shared_xaxes=True, subplot_titles=names)
        for row, name in enumerate(names, 1):
            for line in self.history.curves.get(name).get_curves():
                host = self._get_host(self.history.ranks[line.rank][0]) or "node"
                label = host if name in ("disk", "network") else f"rank {line.rank}"
                figure.add_scatter(x=line.steps, y=line.values, name=label, legendgroup=label, row=row, col=1)
        return figure.update_layout(height=120 * height + 90, hovermode="x")

    def _get_host(self, sample: ResourceSample) -> str:
        return self.history.nodes.get(sample.node, NodeHardware()).host


def make_resources(history: ResourceHistory, *, running: bool) -> Resources:
    """Return the newest usage and the curves for a page, with the current problems if the job is ``running``."""
    points = max(_MIN_POINTS, min(_MAX_POINTS, _MAX_TOTAL_POINTS // max(1, len(history.ranks))))
    return Resources(
        samples=tuple(sample for _, sample in sorted(history.samples.items())),
        about=dict(history.nodes),
        marks=tuple(history.find_problems()) if running else (),
        strips={name: tuple(map(_round, history.curves.get(name).get_curves(points))) for name in history.curve_names},
    )


def _round(line: RankCurve) -> RankCurve:
    """Return a curve with values rounded to the digits that are visible."""
    values = [None if value is None else float(f"{value:.4g}") for value in line.values]
    steps = [round(step, 1) for step in line.steps]
    return replace(line, steps=steps, values=values, times=[])


def _format_size(value: float | None, limit: float | None = None) -> str:
    return "" if value is None else size(value) + ("" if limit is None else f" of {size(limit)}")


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _format_rate(first: float | None, second: float | None) -> str:
    return "" if first is None and second is None else f"{size((first or 0) + (second or 0))}/s"

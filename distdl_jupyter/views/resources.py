"""The resource usage of ranks and machines as a table for a notebook or a terminal, as data and as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import table
from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.resources import (
    CURVES,
    NodeFacts,
    NodeUsage,
    RankUsage,
    ResourceBook,
    ResourceMark,
    ResourceSample,
)
from distdl_jupyter.core.series import RankCurve

if TYPE_CHECKING:
    import pandas as pd

#: Maximum points of a curve and of all curves of a resource, and minimum points of a curve; they are sent every 2 s.
_MAX_POINTS, _MAX_TOTAL_POINTS, _MIN_POINTS = 80, 1600, 16
_HEADER = ("Rank", "Host", "CPU, % of a core", "Memory", "GPU", "GPU memory", "Tensors on GPU", "Power", "Free on host",
         "Disk of host", "Network of host")  # fmt: skip
_NO_SAMPLES_YET = "No samples yet. The first is taken one second after the first rank has started."
_NO_SAMPLES = "No samples. The job ran for less than a second, or ran on Azure ML."


@dataclass(frozen=True, slots=True)
class Resources:
    """The newest sample of each machine, facts about the machines, current problems (worst first), and curves by name.

    Curves are over seconds since the first sample; those of a machine are listed for its first rank.
    """

    samples: tuple[ResourceSample, ...]
    about: dict[int, NodeFacts]
    marks: tuple[ResourceMark, ...]
    strips: dict[str, tuple[RankCurve, ...]]


class ResourceTable(table.Display, list[ResourceSample]):
    """All samples of a job, in order; displays the newest sample of each rank, or the reason why there are none."""

    def __init__(self, path: Path, *, is_pending: bool = False) -> None:
        self._empty_text = _NO_SAMPLES_YET if is_pending else _NO_SAMPLES
        self.book = ResourceBook(path)
        super().__init__(self.book.read())

    @property
    def marks(self) -> list[ResourceMark]:
        """The problems at the last sample."""
        return self.book.find_marks()

    def _parts(self) -> list[str | table.Rows]:
        return [self._make_rows(), *(mark.text for mark in self.marks)] if self else [self._empty_text]

    def _make_rows(self) -> list[tuple[str, ...]]:
        """Return a row for each rank; the usage of a host is in the row of its first rank."""
        rows: list[tuple[str, ...]] = [_HEADER]
        node: int | None = None
        for rank, (sample, use) in sorted(self.book.ranks.items()):
            machine = sample.machine
            power = "" if use.power is None else f"{use.power:.0f} W"
            disk, network = (
                _format_rate(machine.disk_read, machine.disk_written),
                _format_rate(machine.received, machine.sent),
            )
            host = (
                (_format_size(machine.available, machine.limit), disk, network) if sample.node != node else ("", "", "")
            )
            rows.append((str(rank), self._get_host(sample), _format_percent(use.cpu), _format_size(use.memory),
                         _format_percent(use.gpu), _format_size(use.gpu_memory, use.gpu_limit),
                         _format_size(use.torch_allocated), power, *host))  # fmt: skip
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
                **asdict(use),
                **{f"node_{name}": value for name, value in asdict(sample.machine).items()},
            }
            for sample in self
            for rank, use in sorted(sample.ranks.items())
        ]
        numbers = [*RankUsage.__dataclass_fields__, *(f"node_{name}" for name in NodeUsage.__dataclass_fields__)]
        frame = pd.DataFrame(rows, columns=["time", "rank", "host", *numbers]).astype(dict.fromkeys(numbers, "float64"))
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    def figure(self) -> Any:
        """Return a plotly Figure of CPU, memory etc. over seconds, with one line per rank; units as in the table."""
        from plotly.subplots import make_subplots

        curves = self.book.curves
        names = [name for name in CURVES if name in curves.names]
        height = max(1, len(names))
        figure = make_subplots(rows=height, cols=1, shared_xaxes=True, subplot_titles=names)
        for row, name in enumerate(names, 1):
            for line in curves.get_curves(name):
                label = f"rank {line.rank}"
                if name in ("disk", "network"):
                    label = self._get_host(self.book.ranks[line.rank][0]) or "node"
                figure.add_scatter(x=line.steps, y=line.values, name=label, legendgroup=label, row=row, col=1)
        return figure.update_layout(height=120 * height + 90, hovermode="x")

    def _get_host(self, sample: ResourceSample) -> str:
        return self.book.about.get(sample.node, NodeFacts()).host


def make_resources(book: ResourceBook, *, running: bool) -> Resources:
    """Return the newest usage and curves for a page; current problems only while the job is ``running``."""
    points = max(_MIN_POINTS, min(_MAX_POINTS, _MAX_TOTAL_POINTS // max(1, len(book.ranks))))
    return Resources(
        samples=tuple(sample for _, sample in sorted(book.nodes.items())),
        about=dict(book.about),
        marks=tuple(book.find_marks()) if running else (),
        strips={
            name: tuple(map(_round, book.curves.get_curves(name, points)))
            for name in CURVES
            if name in book.curves.names
        },
    )


def _round(line: RankCurve) -> RankCurve:
    """Return a line rounded to the digits that a curve can show."""
    values = [None if value is None else float(f"{value:.4g}") for value in line.values]
    steps = [round(step, 1) for step in line.steps]
    return replace(line, steps=steps, values=values, times=[])


def _format_size(value: float | None, limit: float | None = None) -> str:
    return "" if value is None else size(value) + ("" if limit is None else f" of {size(limit)}")


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _format_rate(first: float | None, second: float | None) -> str:
    return "" if first is None and second is None else f"{size((first or 0) + (second or 0))}/s"

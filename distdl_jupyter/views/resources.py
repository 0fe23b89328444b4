"""What ranks and machines used, as a table for a notebook or a terminal, as data and as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import table
from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.resources import (
    CURVES,
    NodeFacts,
    NodeUse,
    RankUse,
    ResourceBook,
    ResourceMark,
    ResourceReader,
    ResourceSample,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

#: Points of a line of a strip, of all lines of a strip together, and of a line at least: they are sent every 2 s.
_POINTS, _MOST, _FEWEST = 80, 1600, 16
#: Title and unit of each curve.
TITLES = {
    "cpu": ("CPU", "% of one core"),
    "memory": ("Memory", "bytes"),
    "gpu": ("GPU", "% busy"),
    "gpu_memory": ("GPU memory", "bytes"),
    "torch_allocated": ("Tensors on GPU", "bytes"),
    "power": ("Power", "W"),
    "disk": ("Disk", "bytes/s"),
    "network": ("Network", "bytes/s"),
}
HEAD = ("Rank", "Host", "CPU, % of a core", "Memory", "GPU", "GPU memory", "Tensors on GPU", "Power", "Free on host",
        "Disk of host", "Network of host")  # fmt: skip
_NOT_YET = "No samples yet. The first is taken one second after the first rank has started."
_NONE = "No samples. The job ran for less than a second, or ran on Azure ML."


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResources(RankUse):
    """What one rank used lately; ``node`` is the number of its machine in ``Resources.nodes``."""

    rank: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources(NodeUse):
    """What one machine used lately."""

    node: int
    host: str
    cores: int | None


@dataclass(frozen=True, slots=True)
class ResourceLine:
    """One rank's curve in a strip; a strip of machines has a line under the first rank of each."""

    rank: int
    seconds: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ResourceStrip:
    """The curves of one resource over seconds since the first sample."""

    name: str
    lines: tuple[ResourceLine, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What ranks and machines used lately, and what goes wrong with it now, the worst first."""

    nodes: tuple[NodeResources, ...]
    ranks: tuple[RankResources, ...]
    marks: tuple[ResourceMark, ...]
    strips: tuple[ResourceStrip, ...]


class ResourceTable(table.Display, list[ResourceSample]):
    """All samples of a job, in order; it shows the newest of each rank, or why there are none."""

    def __init__(self, path: Path, *, may_come: bool = False) -> None:
        self._why = _NOT_YET if may_come else _NONE
        reader = ResourceReader(path)
        super().__init__(reader.all())
        self.book = ResourceBook(reader.about)
        for sample in self:
            self.book.apply(sample)

    @property
    def marks(self) -> list[ResourceMark]:
        """What went wrong at the last sample."""
        return self.book.marks()

    def _rows(self) -> list[tuple[str, ...]]:
        """Return a row for each rank; what its host has left and does stands once, beside the host's first rank."""
        rows: list[tuple[str, ...]] = [HEAD]
        node: int | None = None
        for rank, (sample, use) in sorted(self.book.ranks.items()):
            machine = sample.machine
            power = "" if use.power is None else f"{use.power:.0f} W"
            disk, network = _both(machine.disk_read, machine.disk_written), _both(machine.received, machine.sent)
            of_host = (_of(machine.left, machine.limit), disk, network) if sample.node != node else ("", "", "")
            rows.append((str(rank), self._host(sample), _percent(use.cpu), _size(use.memory), _percent(use.gpu),
                         _of(use.gpu_memory, use.gpu_limit), _size(use.torch_allocated), power, *of_host))  # fmt: skip
            node = sample.node
        return rows

    def _parts(self) -> list[str | table.Rows]:
        return [self._rows(), *(mark.text for mark in self.marks)] if self else [self._why]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per sample and rank: ``time`` (UTC), ``rank``, ``host``, what the rank and its node use.

        Percent, bytes, watts and bytes a second; NaN where the system does not tell.
        """
        import pandas as pd

        rank_fields, machine = list(RankUse.__dataclass_fields__), list(NodeUse.__dataclass_fields__)
        rows = [
            (
                sample.t,
                rank,
                self._host(sample),
                *(getattr(use, name) for name in rank_fields),
                *(getattr(sample.machine, name) for name in machine),
            )
            for sample in self
            for rank, use in sorted(sample.ranks.items())
        ]
        columns = ["time", "rank", "host", *rank_fields, *(f"node_{name}" for name in machine)]
        frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:], "float64"))
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    def figure(self) -> Any:
        """Return a plotly Figure: a strip for each of CPU, memory and so on, over seconds, with a line per rank."""
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots

        from distdl_jupyter.core.theme import rank_line

        names = [name for name in CURVES if name in self.book.curves.names]
        figure = make_subplots(rows=max(1, len(names)), cols=1, shared_xaxes=True, vertical_spacing=0.04)
        for row, name in enumerate(names, 1):
            for line in self.book.curves.lines(name):
                whole = name in ("disk", "network")
                label = self._host(self.book.ranks[line.rank][0]) or "node" if whole else f"rank {line.rank}"
                look = {**rank_line(line.rank), "width": 1.5}
                trace = go.Scatter(x=line.steps, y=line.values, name=label, line=look, mode="lines")
                figure.add_trace(trace.update(legendgroup=label, showlegend=row == 1), row=row, col=1)
            title, unit = TITLES[name]
            figure.update_yaxes(title_text=f"{title}<br>{unit}", rangemode="tozero", row=row, col=1)
        figure.update_xaxes(title_text="seconds", row=max(1, len(names)), col=1)
        return figure.update_layout(height=110 * max(1, len(names)) + 90, template="plotly_white", hovermode="x")

    def _host(self, sample: ResourceSample) -> str:
        return self.book.about.get(sample.node, NodeFacts()).host


def resources(book: ResourceBook, *, running: bool) -> Resources:
    """Return what pages show: the newest numbers, what goes wrong now while the job is ``running``, and curves."""
    marks = book.marks() if running else []
    about = {node: book.about.get(node, NodeFacts()) for node in sorted(book.nodes)}
    return Resources(
        nodes=tuple(
            NodeResources(node=node, host=host_facts.host, cores=host_facts.cores, **asdict(book.nodes[node].machine))
            for node, host_facts in about.items()
        ),
        ranks=tuple(
            RankResources(rank=rank, node=sample.node, **asdict(use))
            for rank, (sample, use) in sorted(book.ranks.items())
        ),
        marks=tuple(marks),
        strips=tuple(_strip(name, book) for name in CURVES if name in book.curves.names),
    )


def _strip(name: str, book: ResourceBook) -> ResourceStrip:
    lines = book.curves.lines(name, max(_FEWEST, min(_POINTS, _MOST // max(1, len(book.ranks)))))
    shown = [ResourceLine(line.rank, tuple(round(step, 1) for step in line.steps), tuple(map(_short, line.values)))
             for line in lines]  # fmt: skip
    return ResourceStrip(name, tuple(shown))


def _short(value: float | None) -> float | None:
    """Return a value with the digits that a curve can show."""
    return None if value is None else float(f"{value:.4g}")


def _of(value: float | None, most: float | None) -> str:
    return _size(value) + (f" of {size(most)}" if value is not None and most is not None else "")


def _size(value: float | None) -> str:
    return "" if value is None else size(value)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _both(first: float | None, second: float | None) -> str:
    return "" if first is None and second is None else f"{size((first or 0) + (second or 0))}/s"

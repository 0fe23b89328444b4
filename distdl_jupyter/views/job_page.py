"""The page of a job, besides its card and its curves: the spec, the code, the ranks and the log.

Pure: view and spec in, plain data out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.failure import describe
from distdl_jupyter.core.humanize import Styles
from distdl_jupyter.core.options import ABOUT, DEFAULTS
from distdl_jupyter.core.spec import UNKNOWN, Captured, CodeSource, JobEnvironment
from distdl_jupyter.views.card import Card, RankStatus, card, origin_text, rank_status
from distdl_jupyter.views.curve import MetricValue, metrics
from distdl_jupyter.views.wire import finite, from_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.failure import RankView
    from distdl_jupyter.core.log import FoldedRow, LogBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank in the table of ranks."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int | None
    gpu: int | None
    status: RankStatus
    last_step: float | None
    lines: int
    error_lines: int
    #: How its process ended: ``exit code 3``, ``ended by SIGKILL``; "" while it runs and after a success.
    how: str


#: number, time, rank or null, stream, text, redraws, {rank: number of the line in that rank's output}, styles
LogRow = tuple[int, float, int | None, str, str, int, dict[str, int], Styles]


@dataclass(frozen=True, slots=True)
class LogChanges:
    """Changes of a log view: insert ``rows`` by number, drop those below ``first``, replace ``open``."""

    rows: tuple[LogRow, ...]
    #: Lines that are being redrawn, below all rows.
    open: tuple[LogRow, ...]
    #: Number of the oldest row that is kept, and of the next row to come.
    first: int
    next: int
    #: Lines in all ranks, and on stderr by rank.
    total: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One line of the spec; ``field`` is the primary name of the option."""

    field: str
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with everything that is not streamed: the spec, its code and the captured variables."""

    card: Card
    metrics: tuple[MetricValue, ...]
    ranks: tuple[RankRow, ...]
    spec: tuple[SpecRow, ...]
    captured: tuple[Captured, ...]
    source: CodeSource
    #: Package versions when it was submitted.
    versions: dict[str, str]
    #: Whether it is the first run of a check (see JobCheck).
    is_check: bool


def job_detail(
    view: JobView, spec: JobSpec, now: float, *, environment: JobEnvironment = UNKNOWN, has_checkpoints: bool = False
) -> JobDetail:
    """Return the whole job at the moment ``now`` (epoch seconds)."""
    return from_fields(
        JobDetail,
        spec,
        card=card(view, now, has_checkpoints=has_checkpoints),
        metrics=metrics(view),
        ranks=tuple(rank_row(rank) for rank in view.ranks),
        spec=tuple(spec_rows(spec, environment)),
        is_check=bool(spec.check) and not spec.check.get("replay"),
    )


def rank_row(rank: RankView) -> RankRow:
    """Return one line of the table of ranks."""
    ended = rank.status == "ended" or rank.ok is False
    how = describe(rank) if ended and describe(rank) != "ended" else ""
    return from_fields(RankRow, rank, status=rank_status(rank), last_step=finite(rank.last_step), how=how)


def spec_rows(spec: JobSpec, environment: JobEnvironment = UNKNOWN) -> list[SpecRow]:
    """Return the lines of the spec and of its environment that are set, the most important first."""
    plugins, price = {**spec.backend_options, **spec.cluster_options}, ""
    if spec.price_per_hour is not None:
        price = f"{humanize.money(spec.price_per_hour, spec.currency)} per node and hour ({spec.price_source})"
    rows = [
        ("name", "Name", spec.name),
        ("source", "Code", _code(spec)),
        ("compute_target", "Cluster", spec.compute_target),
        ("process_count", "Processes", humanize.processes(spec.node_count, spec.process_count_per_node)),
        ("distributed_backend", "Backend", spec.distributed_backend),
        ("price_per_hour", "Price", price),
        *((name, name, str(value)) for name, value in plugins.items()),
        *((name, about.label, about.shown(getattr(spec, name))) for name, about in ABOUT.items()
          if about.label and getattr(spec, name) != DEFAULTS[name]),
        ("environment_variables", "Environment", _variables(spec)),
        ("resumed_from", "Continues", origin_text(spec)),
        ("working_directory", "Directory", spec.working_directory),
        ("python", "Python", " ".join(part for part in (spec.versions.get("python", ""), spec.python) if part)),
        ("script_arguments", "Arguments", " ".join(spec.script_arguments)),
        ("git", "Git", str(environment.git) if environment.git else ""),
        ("packages", "Packages", humanize.count(len(environment.packages)) if environment.packages else ""),
    ]  # fmt: skip
    return [SpecRow(field, label, value) for field, label, value in rows if value]


def _code(spec: JobSpec) -> str:
    source = spec.source
    cell = f"cell [{source.execution_count}]" if source.execution_count is not None else spec.kind
    return f"{cell}, {source.notebook.rsplit('/', 1)[-1]}" if source.notebook else cell


def _variables(spec: JobSpec) -> str:
    shown = [f"{name}={value}" for name, value in spec.environment_variables.items()]
    return ", ".join([*shown, *(f"{name}=•••" for name in spec.secret_variables)])


def log_changes(book: LogBook, rows: Iterable[FoldedRow]) -> LogChanges:
    """Return rows of a log as short lists, because there are many, with the open lines and the counts."""
    return from_fields(
        LogChanges,
        book,
        rows=tuple(log_row(row) for row in rows),
        open=tuple(log_row(row) for row in book.open),
        errors={str(rank): count for rank, count in book.errors.items()},
    )


def log_row(row: FoldedRow) -> LogRow:
    """Return one row; a line that is being redrawn has no number yet."""
    lines = row.lines or ({row.rank: 0} if row.rank is not None else {})
    numbers = {str(rank): line for rank, line in lines.items()}
    return (row.n, row.t, row.rank, row.stream, row.text, row.redraws, numbers, row.styles)

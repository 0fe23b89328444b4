"""The data of a job's page other than card and curves: spec, ranks, log, check, checkpoints; and job comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core import humanize
from distdl_jupyter.core.checkpoints import Checkpoint
from distdl_jupyter.core.correctness import Comparison, Difference
from distdl_jupyter.core.failure import RankView, describe_end
from distdl_jupyter.core.humanize import Styles
from distdl_jupyter.core.log import FoldedLog, FoldedRow
from distdl_jupyter.core.options import DEFAULTS, OPTIONS
from distdl_jupyter.core.spec import UNKNOWN, Captured, CodeSource, JobEnvironment, JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views.card import Card, format_origin, get_rank_status, make_card
from distdl_jupyter.views.curve import MetricValue, list_metrics
from distdl_jupyter.views.wire import from_fields


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank in the table of ranks."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int | None
    gpu: int | None
    #: waiting, started, ready, compiling, ended or failed
    status: str
    last_step: float | None
    lines: int
    error_lines: int
    #: How the rank's process ended: ``exit code 3``, ``ended by SIGKILL``; "" while it runs and after success.
    how: str


#: Number, time, rank or None, stream, text, redraws, {rank: position of its line, higher for later lines}, styles.
LogRow = tuple[int, float, int | None, str, str, int, dict[int, int], Styles]


@dataclass(frozen=True, slots=True)
class LogChanges:
    """Changes of a log view: insert ``rows`` by number, drop those below ``first``, replace ``open``."""

    rows: tuple[LogRow, ...]
    #: Lines that are still being redrawn, below all rows.
    open: tuple[LogRow, ...]
    #: Number of the oldest row that is kept.
    first: int
    #: Number of the next new row.
    next: int
    #: Number of lines of all ranks.
    total: int
    #: Number of lines on stderr by rank.
    errors: dict[int, int]


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One line of the spec; ``field`` is the primary name of the option."""

    field: str
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with all data that is not streamed: the spec, its code and the captured variables."""

    card: Card
    metrics: tuple[MetricValue, ...]
    ranks: tuple[RankRow, ...]
    spec: tuple[SpecRow, ...]
    captured: tuple[Captured, ...]
    source: CodeSource
    #: Package versions at the time of submission.
    versions: dict[str, str]
    #: Whether this job is the first run of a check (see JobCheck).
    is_check: bool


def make_detail(
    view: JobView, spec: JobSpec, now: float, *, environment: JobEnvironment = UNKNOWN, has_checkpoints: bool = False
) -> JobDetail:
    """Return the page of a job at the time ``now`` (epoch seconds)."""
    return from_fields(
        JobDetail,
        spec,
        card=make_card(view, now, has_checkpoints=has_checkpoints),
        metrics=list_metrics(view),
        ranks=tuple(make_rank_row(rank) for rank in view.ranks),
        spec=tuple(make_spec_rows(spec, environment)),
        is_check=bool(spec.check) and not spec.check.get("replay"),
    )


def make_rank_row(rank: RankView) -> RankRow:
    """Return one line of the table of ranks."""
    ending = describe_end(rank)[0] if rank.status == "ended" or rank.ok is False else ""
    return from_fields(RankRow, rank, status=get_rank_status(rank), how="" if ending == "ended" else ending)


def make_spec_rows(spec: JobSpec, environment: JobEnvironment = UNKNOWN) -> list[SpecRow]:
    """Return the options that are set and the environment, the most important first."""
    plugin_options, price = {**spec.backend_options, **spec.cluster_options}, ""
    if spec.price_per_hour is not None:
        price = f"{humanize.money(spec.price_per_hour, spec.currency)} per node and hour ({spec.price_source})"
    variables = {**spec.environment_variables, **dict.fromkeys(spec.secret_variables, "•••")}
    rows = [
        ("name", "Name", spec.name),
        ("source", "Code", _format_code(spec)),
        ("compute_target", "Cluster", spec.compute_target),
        ("process_count", "Processes", humanize.processes(spec.node_count, spec.process_count_per_node)),
        ("distributed_backend", "Backend", spec.distributed_backend),
        ("price_per_hour", "Price", price),
        *((name, name, str(value)) for name, value in plugin_options.items()),
        *((name, option.label, option.format_value(getattr(spec, name))) for name, option in OPTIONS.items()
          if option.label and getattr(spec, name) != DEFAULTS[name]),
        ("environment_variables", "Environment", ", ".join(f"{name}={value}" for name, value in variables.items())),
        ("resumed_from", "Continues", format_origin(spec)),
        ("working_directory", "Directory", spec.working_directory),
        ("python", "Python", " ".join(part for part in (spec.versions.get("python", ""), spec.python) if part)),
        ("script_arguments", "Arguments", " ".join(spec.script_arguments)),
        ("git", "Git", str(environment.git) if environment.git else ""),
        ("packages", "Packages", humanize.count(len(environment.packages)) if environment.packages else ""),
    ]  # fmt: skip
    return [SpecRow(field, label, value) for field, label, value in rows if value]


def _format_code(spec: JobSpec) -> str:
    source = spec.source
    cell = f"cell [{source.execution_count}]" if source.execution_count is not None else spec.kind
    return f"{cell}, {source.notebook.rsplit('/', 1)[-1]}" if source.notebook else cell


def make_log_changes(view: JobView, log: FoldedLog, rows: Iterable[FoldedRow]) -> LogChanges:
    """Return rows of a log, the lines that are still being redrawn, and the counts."""
    errors = {rank.rank: rank.error_lines for rank in view.ranks if rank.error_lines}
    open_rows = tuple(map(make_log_row, log.open_rows.values()))
    return LogChanges(tuple(map(make_log_row, rows)), open_rows, log.first_number, log.next_number, view.lines, errors)


def make_log_row(row: FoldedRow) -> LogRow:
    """Return one row; a line that is being redrawn has no number yet."""
    numbers = row.lines or ({row.rank: 0} if row.rank is not None else {})
    return (row.n, row.t, row.rank, row.stream, row.text, row.redraws, numbers, row.styles)


CheckState = Literal["several", "one", "failed", "done"]


@dataclass(frozen=True, slots=True)
class JobCheck:
    """A check of training code. It runs on "several" ranks, then on "one" process, and is "done" after that.

    ``summary`` and ``notes`` are sentences about the result and what was compared, or why the check has "failed".
    ``single`` is the id of the run on one process, or "" before that run starts.
    """

    state: CheckState
    summary: str
    findings: tuple[Difference, ...]
    notes: tuple[str, ...]
    single: str


def make_job_check(state: CheckState, comparison: Comparison, *, reason: str = "", single: str = "") -> JobCheck:
    """Return a check for a page, with the ``comparison`` so far, or the ``reason`` why its first run failed."""
    notes = tuple(comparison.notes) if state == "done" else ()
    return JobCheck(state, reason or comparison.summary, tuple(comparison.findings), notes, single)


# checkpoints ------------------------------------------------------------------------------------

#: Maximum number of metric columns.
_MAX_METRICS = 6
_EMPTY_TEXT = "No checkpoints. Checkpoints that the code saves in distdl_jupyter.checkpoint_dir() are listed here."


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint for a page, with fields as in ``Checkpoint``; ``load`` is Python code that loads it."""

    path: str
    step: float | None
    is_named: bool
    metrics: dict[str, float | None]
    size: int
    files: int
    modified: float
    load: str


class CheckpointList(humanize.Display, list[Checkpoint]):
    """Checkpoints, newest first, displayed as a table."""

    def _parts(self) -> list[str | humanize.Rows]:
        return [_make_table(self) if self else _EMPTY_TEXT]


def list_metric_columns(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """Return the names of all metrics of the checkpoints, in the order of their first report."""
    return list(dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.metrics))


def _make_table(checkpoints: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    names = list_metric_columns(checkpoints)[:_MAX_METRICS]
    rows = []
    for checkpoint in checkpoints:
        step = "" if checkpoint.step is None else humanize.count(checkpoint.step)
        rows.append(
            (
                # If the file name has no step, the step is estimated from the time of writing.
                step if checkpoint.is_named or not step else f"about {step}",
                *(humanize.number(checkpoint.metrics[name]) if name in checkpoint.metrics else "" for name in names),
                humanize.size(checkpoint.size),
                humanize.count(checkpoint.files) if checkpoint.files > 1 else "",
                humanize.date_and_clock(checkpoint.modified),
                checkpoint.path,
            )
        )
    return [("step", *names, "size", "files", "written", "checkpoint"), *rows]


def make_checkpoint_rows(checkpoints: Iterable[Checkpoint]) -> tuple[CheckpointRow, ...]:
    """Return the checkpoints for a page."""
    return tuple(from_fields(CheckpointRow, checkpoint, load=checkpoint.load_code) for checkpoint in checkpoints)


# several jobs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One option in which jobs differ, with its value in each job, or "" if a job has none."""

    field: str
    label: str
    values: tuple[str, ...]


def list_metric_names(views: Iterable[JobView]) -> list[str]:
    """Return the metrics of jobs, sorted by the number of jobs that report them, then by their first report."""
    return [name for name, _ in Counter(name for view in views for name in view.metrics).most_common()]


def compare_specs(jobs: Sequence[tuple[JobSpec, JobEnvironment]]) -> tuple[ComparisonRow, ...]:
    """Return the options, captured values and packages in which jobs differ."""
    option_values: dict[tuple[str, str], dict[int, str]] = {}
    for index, (spec, environment) in enumerate(jobs):
        for row in make_spec_rows(spec, environment):
            if row.field not in ("name", "packages"):
                option_values.setdefault((row.field, row.label), {})[index] = row.value
        for item in spec.captured:
            if item.kind == "value":
                text = item.detail.partition(" = ")[2] or item.detail
                option_values.setdefault((f"captured.{item.name}", item.name), {})[index] = text
    # Jobs whose packages are unknown are not compared.
    packages_by_job = {index: env.packages for index, (_, env) in enumerate(jobs) if env.packages}
    for name in dict.fromkeys(name for packages in packages_by_job.values() for name in packages):
        versions = {index: packages.get(name, "") for index, packages in packages_by_job.items()}
        if len(set(versions.values())) > 1:
            option_values[f"package.{name}", name] = versions
    rows = [ComparisonRow(*key, tuple(row.get(i, "") for i in range(len(jobs)))) for key, row in option_values.items()]
    return tuple(row for row in rows if len(set(row.values)) > 1)

"""The page of a job, besides its card and its curves: the spec, the code, the ranks, the log and the seven steps.

The steps are those of Azure's reference architecture for distributed training (with Batch AI, 2019): scripts, data,
data on the nodes, image, nodes, job, results. A job here has seven phases of its own; ``here`` says which of them make
up a step. A step that a job does not have says why instead of pretending. Pure: view and spec in, plain data out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distdl_jupyter.core import humanize
from distdl_jupyter.core.data import place
from distdl_jupyter.core.environment import UNKNOWN, JobEnvironment
from distdl_jupyter.core.failure import describe
from distdl_jupyter.core.options import ABOUT, DEFAULTS
from distdl_jupyter.core.state import State
from distdl_jupyter.views.card import card, origin_text, price_text, rank_status
from distdl_jupyter.views.curve import metrics
from distdl_jupyter.views.schema import JobDetail, LogChanges, LogRow, RankRow, SpecRow
from distdl_jupyter.views.wire import finite

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.log import LogBook, Row
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView, Phase

#: "unused" is a step that this job does not need.
StepState = Literal["done", "now", "next", "unused", "failed", "stopped"]

#: Title of each step, and the phases of a job that make it up.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Scripts", ("capture",)),
    ("Data", ()),
    ("Data on the nodes", ("stage",)),
    ("Image", ()),
    ("Nodes", ("start",)),
    ("Job", ("rendezvous", "train")),
    ("Results", ("collect", "clean")),
)
_BROKEN: dict[State, StepState] = {State.FAILED: "failed", State.LOST: "failed", State.CANCELED: "stopped"}


def job_detail(
    view: JobView, spec: JobSpec, now: float, *, environment: JobEnvironment = UNKNOWN, has_checkpoints: bool = False
) -> JobDetail:
    """Return the whole job at the moment ``now`` (epoch seconds)."""
    source = spec.source
    return JobDetail(
        card=card(view, now, has_checkpoints=has_checkpoints),
        metrics=metrics(view),
        ranks=tuple(rank_row(rank) for rank in view.ranks),
        spec=(*spec_rows(spec), *environment_rows(environment)),
        captured=spec.captured,
        code=source.code,
        command=source.command,
        notebook=source.notebook,
        cell_id=source.cell_id,
        execution_count=source.execution_count,
        first_line=source.first_line,
        versions=dict(spec.versions),
        is_check=bool(spec.check) and not spec.check.get("replay"),
    )


def rank_row(rank: RankView) -> RankRow:
    """Return one line of the table of ranks."""
    ended = rank.status == "ended" or rank.ok is False
    return RankRow(
        rank=rank.rank,
        local_rank=rank.local_rank,
        node=rank.node,
        host=rank.host,
        pid=rank.pid,
        gpu=rank.gpu,
        status=rank_status(rank),
        last_step=finite(rank.last_step),
        lines=rank.lines,
        error_lines=rank.error_lines,
        how=describe(rank) if ended and describe(rank) != "ended" else "",
    )


def spec_rows(spec: JobSpec) -> list[SpecRow]:
    """Return the lines of the spec that say something, in the order in which people ask."""
    plugins = {**spec.backend_options, **spec.cluster_options}
    rows = [
        ("name", "Name", spec.name),
        ("source", "Code", _code(spec)),
        ("compute_target", "Cluster", spec.compute_target),
        ("process_count", "Processes", humanize.processes(spec.node_count, spec.process_count_per_node)),
        ("distributed_backend", "Backend", spec.distributed_backend),
        ("price_per_hour", "Price", price_text(spec)),
        *((name, name, str(value)) for name, value in plugins.items()),
        *((name, about.label, about.shown(getattr(spec, name))) for name, about in ABOUT.items()
          if about.label and getattr(spec, name) != DEFAULTS[name]),
        ("environment_variables", "Environment", _variables(spec)),
        ("resumed_from", "Continues", origin_text(spec)),
        ("working_directory", "Directory", spec.working_directory),
        ("python", "Python", " ".join(part for part in (spec.versions.get("python", ""), spec.python) if part)),
        ("script_arguments", "Arguments", " ".join(spec.script_arguments)),
    ]  # fmt: skip
    return [SpecRow(field, label, value) for field, label, value in rows if value]


def environment_rows(environment: JobEnvironment) -> list[SpecRow]:
    """Return the lines of what it ran with."""
    rows = [
        ("git", "Git", str(environment.git) if environment.git else ""),
        ("packages", "Packages", humanize.count(len(environment.packages)) if environment.packages else ""),
    ]
    return [SpecRow(field, label, value) for field, label, value in rows if value]


def _code(spec: JobSpec) -> str:
    source = spec.source
    cell = f"cell [{source.execution_count}]" if source.execution_count is not None else spec.kind
    return f"{cell}, {source.notebook.rsplit('/', 1)[-1]}" if source.notebook else cell


def _variables(spec: JobSpec) -> str:
    shown = [f"{name}={value}" for name, value in spec.environment_variables.items()]
    return ", ".join([*shown, *(f"{name}=•••" for name in spec.secret_variables)])


def log_changes(book: LogBook, rows: Iterable[Row]) -> LogChanges:
    """Return rows of a log as short lists, because there are many, with the open lines and counts of now."""
    return LogChanges(
        rows=tuple(log_row(row) for row in rows),
        open=tuple(log_row(row) for row in book.open),
        first=book.first,
        next=book.next,
        total=book.total,
        errors={str(rank): count for rank, count in book.errors.items()},
    )


def log_row(row: Row) -> LogRow:
    """Return one row; a line that is being redrawn belongs to its rank although it has no number yet."""
    lines = row.lines or ({row.rank: 0} if row.rank is not None else {})
    numbers = {str(rank): line for rank, line in lines.items()}
    return (row.n, row.t, row.rank, row.stream, row.text, row.redraws, numbers, row.styles)


@dataclass(frozen=True, slots=True)
class Step:
    """One of the seven steps.

    ``begun`` is in epoch seconds, ``seconds`` how long it took so far; None for a step without a time.
    """

    number: int
    title: str
    state: StepState
    detail: str = ""
    here: str = ""
    begun: float | None = None
    seconds: float | None = None


def job_steps(view: JobView, spec: JobSpec, now: float) -> tuple[Step, ...]:
    """Return the seven steps of a job at the moment ``now`` (epoch seconds)."""
    return tuple(
        _step_of_phases(number, view, spec, now) if phases else _step_without_phases(number, title, spec)
        for number, (title, phases) in enumerate(STEPS, 1)
    )


def _broken_phase(view: JobView) -> str:
    """Return the phase in which a job failed or was canceled, the last before the results; else ""."""
    if view.state not in _BROKEN:
        return ""
    before = [phase.phase for phase in view.phases if phase.phase not in ("collect", "clean")]
    return before[-1] if before else "capture"


def _step_of_phases(number: int, view: JobView, spec: JobSpec, now: float) -> Step:
    title, phases = STEPS[number - 1]
    mine = [phase for phase in view.phases if phase.phase in phases and phase.begun is not None]
    here = ", ".join(phases)
    if not mine:
        state: StepState = "unused" if view.state.ended else "next"
        return Step(number, title, state, "not reached" if view.state.ended else "", here)
    begun, end = _begin_and_end(mine, now)
    running = mine[-1] is view.phases[-1] and not view.state.ended
    state = _BROKEN[view.state] if _broken_phase(view) in phases else "now" if running else "done"
    return Step(number, title, state, _step_detail(title, mine, view, spec), here, begun, max(0.0, end - begun))


def _begin_and_end(mine: list[Phase], now: float) -> tuple[float, float]:
    begins, ends = [], []
    for phase in mine:
        begun = phase.begun or 0.0
        # The event of the capture comes when it is over.
        begins.append(begun - (phase.seconds or 0.0) if phase.phase == "capture" else begun)
        ends.append(begun if phase.phase == "capture" else begun + phase.seconds if phase.seconds is not None else now)
    return min(begins), max(ends)


def _step_detail(title: str, mine: list[Phase], view: JobView, spec: JobSpec) -> str:
    if title == "Data on the nodes" and view.staging:
        done, total = sum(bar.done for bar in view.staging), sum(bar.total for bar in view.staging)
        cached = sum(bar.cached for bar in view.staging)
        kept = f", {humanize.size(cached)} already there" if cached else ""
        return f"{humanize.size(done)} of {humanize.size(total)}{kept}"
    if title == "Data on the nodes" and spec.data and mine[-1] is not view.phases[-1]:
        return "used in place"
    if title == "Job":
        return humanize.processes(view.node_count, view.process_count_per_node)
    details = [phase.detail for phase in mine if phase.detail]
    return details[0] if title == "Results" and details else details[-1] if details else ""


def _step_without_phases(number: int, title: str, spec: JobSpec) -> Step:
    if title == "Data":
        if not spec.data:
            return Step(number, title, "unused", "no data source")
        return Step(number, title, "done", f"already there: {', '.join(place(source) for source in spec.data)}")
    image = spec.cluster_options.get("environment") or spec.cluster_options.get("image")
    if image:
        return Step(number, title, "done", f"already there: {image}")
    version = spec.versions.get("python", "")
    return Step(number, title, "unused", f"none specified: ranks use this environment, Python {version}")

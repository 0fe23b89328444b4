"""Everything of a job that does not stream: its spec as people read it, its code, its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.core.failure import describe
from distdl_jupyter.core.options import ABOUT, DEFAULTS
from distdl_jupyter.presentation.card import card, status
from distdl_jupyter.presentation.cost import price
from distdl_jupyter.presentation.curve import metrics
from distdl_jupyter.presentation.plain import finite
from distdl_jupyter.presentation.schema import CapturedName, JobDetail, RankRow, SpecRow

if TYPE_CHECKING:
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView


def detail(view: JobView, spec: JobSpec, now: float, *, has_checkpoints: bool = False) -> JobDetail:
    """Return the whole job at the moment ``now`` (epoch seconds)."""
    source = spec.source
    return JobDetail(
        card=card(view, now, has_checkpoints=has_checkpoints),
        metrics=metrics(view),
        ranks=tuple(rank_row(rank) for rank in view.ranks),
        spec=tuple(spec_rows(spec)),
        captured=tuple(CapturedName(one.name, one.kind, one.detail, one.size) for one in spec.captured),
        code=source.code,
        command=source.command,
        notebook=source.notebook,
        cell_id=source.cell_id,
        execution_count=source.execution_count,
        versions=dict(spec.versions),
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
        status=status(rank),
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
        ("process_count", "Processes", words.processes(spec.node_count, spec.process_count_per_node)),
        ("distributed_backend", "Backend", spec.distributed_backend),
        ("price_per_hour", "Price", price(spec)),
        *((name, name, str(value)) for name, value in plugins.items()),
        *((name, about.label, about.shown(getattr(spec, name))) for name, about in ABOUT.items()
          if about.label and getattr(spec, name) != DEFAULTS[name]),
        ("environment_variables", "Environment", _variables(spec)),
        ("resumed_from", "Continues", spec.resumed_from),
        ("working_directory", "Directory", spec.working_directory),
        ("python", "Python", " ".join(part for part in (spec.versions.get("python", ""), spec.python) if part)),
        ("script_arguments", "Arguments", " ".join(spec.script_arguments)),
    ]  # fmt: skip
    return [SpecRow(field, label, value) for field, label, value in rows if value]


def _code(spec: JobSpec) -> str:
    source = spec.source
    cell = f"cell [{source.execution_count}]" if source.execution_count is not None else spec.kind
    return f"{cell}, {source.notebook.rsplit('/', 1)[-1]}" if source.notebook else cell


def _variables(spec: JobSpec) -> str:
    shown = [f"{name}={value}" for name, value in spec.environment_variables.items()]
    return ", ".join([*shown, *(f"{name}=•••" for name in spec.secret_variables)])

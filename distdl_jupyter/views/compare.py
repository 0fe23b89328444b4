"""Several jobs side by side: their curves of one metric in one figure, and the options that differ."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, theme
from distdl_jupyter.core.figure import Trace, layout, line_trace, step_range, value_range
from distdl_jupyter.core.spec import UNKNOWN, JobEnvironment
from distdl_jupyter.views.curve import Curve
from distdl_jupyter.views.job_page import spec_rows
from distdl_jupyter.views.job_table import default_metric

if TYPE_CHECKING:
    from distdl_jupyter.core.series import Band, SeriesBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
#: Letters of a job's name in the legend.
_TITLE = 24


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One option in which jobs differ: a value for each job, "" where it has none."""

    field: str
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """One job to compare, as a reader holds it."""

    spec: JobSpec
    view: JobView
    book: SeriesBook
    environment: JobEnvironment = UNKNOWN


def metric_names(jobs: Sequence[ComparedJob]) -> tuple[str, ...]:
    """Return the metrics of the jobs: those that most of them report first, then in the order of their first report."""
    return tuple(name for name, _ in _reporting_jobs(jobs).most_common())


def most_reported_metric(jobs: Sequence[ComparedJob]) -> str:
    """Return the metric to draw by default: the loss, else the first one, of those that most jobs report."""
    counts = _reporting_jobs(jobs)
    return default_metric([name for name, count in counts.items() if count == max(counts.values())])


def _reporting_jobs(jobs: Sequence[ComparedJob]) -> Counter[str]:
    return Counter(name for job in jobs for name in job.view.metrics)


def compared_curve(jobs: Sequence[ComparedJob], metric: str) -> Curve:
    """Return the means over ranks of one metric as a figure with one line per job, and its summary."""
    bands = [job.book.band(metric) for job in jobs]
    rows = [row for band in bands for row in band.rows]
    y = value_range(row.mean for row in rows if row.mean is not None)
    made = layout(step_range(row.step for row in rows), y)
    made["uirevision"] = metric
    return Curve(
        metric=metric,
        mode="compare",
        log=False,
        count=sum(job.book.count(metric) for job in jobs),
        data=tuple(_line(number, job, band) for number, (job, band) in enumerate(zip(jobs, bands, strict=True))),
        layout=made,
        summary=_summary(metric, jobs, bands),
        table=(),
        value="",
    )


def style(number: int) -> dict[str, Any]:
    """Return colour and dash of a job's line: the first four differ in both, the others at least in one."""
    colours = len(theme.RANKS)
    dash = _DASHES[(number + number // colours) % len(_DASHES)]
    return {"color": theme.RANKS[number % colours], "dash": dash, "width": 2}


def _line(number: int, job: ComparedJob, band: Band) -> Trace:
    title = job.spec.name if len(job.spec.name) <= _TITLE else f"{job.spec.name[: _TITLE - 1]}…"
    name = html.escape(f"{title} {humanize.short_id(job.spec.id)}")
    return line_trace(
        name,
        [row.step for row in band.rows],
        [row.mean for row in band.rows],
        line=style(number),
        hovertemplate=f"{name}  <b>%{{y:,.4~g}}</b><extra></extra>",
    )


def _summary(metric: str, jobs: Sequence[ComparedJob], bands: Sequence[Band]) -> str:
    ends = [
        f"{humanize.short_id(job.spec.id)} ends at {humanize.number(band.last)} after "
        f"{humanize.plural(band.last_step, 'step')}"
        for job, band in zip(jobs, bands, strict=True) if band.last is not None
    ]  # fmt: skip
    return f"Curves of {metric}: {', '.join(ends)}" if ends else f"Curves of {metric or 'no metric'}: no values yet"


def differing_rows(jobs: Sequence[ComparedJob]) -> tuple[ComparisonRow, ...]:
    """Return the options, captured values and packages in which the jobs differ."""
    values_of: dict[tuple[str, str], dict[int, str]] = {}
    for number, job in enumerate(jobs):
        for row in spec_rows(job.spec, job.environment):
            if row.field not in ("name", "packages"):
                values_of.setdefault((row.field, row.label), {})[number] = row.value
        for item in job.spec.captured:
            if item.kind == "value":
                text = item.detail.partition(" = ")[2] or item.detail
                values_of.setdefault((f"captured.{item.name}", item.name), {})[number] = text
    # A job whose packages are unknown says nothing of them.
    known = {number: job.environment.packages for number, job in enumerate(jobs) if job.environment.packages}
    for name in dict.fromkeys(name for packages in known.values() for name in packages):
        versions = {number: packages.get(name, "") for number, packages in known.items()}
        if len(set(versions.values())) > 1:
            values_of[f"package.{name}", name] = versions
    rows = [
        ComparisonRow(*key, tuple(values.get(n, "") for n in range(len(jobs)))) for key, values in values_of.items()
    ]
    return tuple(row for row in rows if len(set(row.values)) > 1)

"""Several jobs side by side: their curves in one figure, their specs and their results. Only what was measured.

Pure. A value counts as best only where it is known which way is better, and where job job alone has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.compared import Against, Compared, compared_figure
from distdl_jupyter.core.environment import UNKNOWN, JobEnvironment
from distdl_jupyter.core.state import State
from distdl_jupyter.views.card import last_step
from distdl_jupyter.views.curve import spread
from distdl_jupyter.views.job_page import spec_rows
from distdl_jupyter.views.job_table import default_metric
from distdl_jupyter.views.schema import ComparisonRow, Curve

if TYPE_CHECKING:
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView

#: Words in the name of a metric that is better when it is lower, or higher.
_LOWER = ("loss", "error", "perplexity", "mae", "mse", "rmse", "wer", "cer")
_HIGHER = ("acc", "accuracy", "f1", "auc", "precision", "recall", "r2", "bleu", "iou", "map", "dice")


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """One job to compare, as a reader holds it."""

    spec: JobSpec
    view: JobView
    book: SeriesBook
    environment: JobEnvironment = UNKNOWN


def metric_names(jobs: Sequence[ComparedJob]) -> tuple[str, ...]:
    """Return the metrics of the jobs: those that most of them report first, then in the order of their first report."""
    names = list(dict.fromkeys(name for job in jobs for name in job.view.metrics))
    return tuple(sorted(names, key=lambda name: -_reporting_jobs(jobs, name)))


def chosen_metric(jobs: Sequence[ComparedJob], wanted: str) -> str:
    """Return the metric to draw: the wanted one, else the default among those that most jobs report."""
    names = metric_names(jobs)
    if wanted:
        return wanted
    most = max((_reporting_jobs(jobs, name) for name in names), default=0)
    return default_metric([name for name in names if _reporting_jobs(jobs, name) == most])


def _reporting_jobs(jobs: Sequence[ComparedJob], name: str) -> int:
    return sum(name in job.view.metrics for job in jobs)


def compared_curve(
    jobs: Sequence[ComparedJob], metric: str, *, against: Against = "step", log: bool = False, dark: bool = False,
    width: int | None = None, height: int | None = None,
) -> Curve:  # fmt: skip
    """Return the figure of the curves with its summary and table; the first traces are the jobs in their order."""
    curves = [Compared(job.spec.id, job.book.band(metric), job.view.placed or job.view.created) for job in jobs]
    drawn = compared_figure(curves, metric, against=against, log=log, dark=dark, width=width, height=height)
    return Curve(
        metric=metric,
        mode="compare",
        log=log,
        count=sum(job.book.count(metric) for job in jobs),
        data=tuple(drawn["data"]),
        layout=drawn["layout"],
        summary=_summary(metric, curves),
        table=_table(curves, against),
        value="",
    )


def _summary(metric: str, curves: Sequence[Compared]) -> str:
    ends = [f"{humanize.short_id(curve.id)} ends at {humanize.number(curve.band.last)} after {_steps(curve)}"
            for curve in curves if curve.band.last is not None]  # fmt: skip
    return f"Curves of {metric}: {', '.join(ends)}" if ends else f"Curves of {metric or 'no metric'}: no values yet"


def _steps(curve: Compared) -> str:
    return humanize.plural(curve.band.last_step, "step")


def _table(curves: Sequence[Compared], against: Against) -> tuple[tuple[str, ...], ...]:
    """Return rows spread over the axis: step or time, and each job's newest mean up to there, "" outside its range."""
    places = sorted({place for curve in curves for place in curve.places(against)})
    known = [_points(curve, against) for curve in curves]
    return tuple((_place(place, against), *(_mean_at(points, place) for points in known)) for place in spread(places))


def _points(curve: Compared, against: Against) -> list[tuple[float, float | None]]:
    if not curve.band.rows:
        return []
    return sorted(zip(curve.places(against), (row.mean for row in curve.band.rows), strict=True))


def _place(place: float, against: Against) -> str:
    return humanize.count(place) if against == "step" else humanize.seconds_taken(place)


def _mean_at(points: list[tuple[float, float | None]], place: float) -> str:
    if not points or not points[0][0] <= place <= points[-1][0]:
        return ""
    mean = [value for at, value in points if at <= place][-1]
    return "not a number" if mean is None else humanize.number(mean)


def comparison_rows(jobs: Sequence[ComparedJob], now: float) -> tuple[ComparisonRow, ...]:
    """Return the specs of the jobs and their results at the moment ``now``, line by line."""
    return (*_spec_comparison(jobs), *_result_comparison(jobs, now))


def _spec_comparison(jobs: Sequence[ComparedJob]) -> list[ComparisonRow]:
    """Return the lines of the specs and the plain values that were captured with the code."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for number, job in enumerate(jobs):
        for row in spec_rows(job.spec):
            if row.field != "name":
                found.setdefault((row.field, row.label), {})[number] = row.value
    for number, job in enumerate(jobs):
        for item in job.spec.captured:
            if item.kind == "value":
                text = item.detail.partition(" = ")[2] or item.detail
                found.setdefault((f"captured.{item.name}", item.name), {})[number] = text
    _add_environments(found, jobs)
    return [_row("Spec", *key, [values.get(n, "") for n in range(len(jobs))]) for key, values in found.items()]


def _add_environments(found: dict[tuple[str, str], dict[int, str]], jobs: Sequence[ComparedJob]) -> None:
    """Add the state of the code in git, and of the packages those whose versions differ."""
    known = {number: job.environment for number, job in enumerate(jobs) if job.environment.packages}
    for number, job in enumerate(jobs):
        if job.environment.git is not None:
            found.setdefault(("git", "Git"), {})[number] = str(job.environment.git)
    for name in dict.fromkeys(name for one in known.values() for name in one.packages):
        versions = {number: one.packages.get(name, "") for number, one in known.items()}
        if len(set(versions.values())) > 1:
            found[f"package.{name}", name] = versions


def _result_comparison(jobs: Sequence[ComparedJob], now: float) -> list[ComparisonRow]:
    views = [job.view for job in jobs]
    ended = [view.run_time(now) if view.state is State.COMPLETED else None for view in views]
    elapsed = [humanize.ran_and_waited(view.run_time(now), view.waiting_time(now)) for view in views]
    found = [
        _row("Result", "state", "State", [humanize.STATE_WORDS[view.state] for view in views]),
        _row("Result", "reason", "Reason", [view.reason for view in views]),
        _row("Result", "elapsed", "Elapsed", elapsed, _best_job(ended, min)),
    ]
    steps = [last_step(view) for view in views]
    found.append(_row("Result", "step", "Last step", ["" if s is None else humanize.count(s) for s in steps]))
    found.extend(_metric_row(views, name) for name in metric_names(jobs))
    return [row for row in found if any(row.values)]


def _metric_row(views: Sequence[JobView], name: str) -> ComparisonRow:
    means = [view.metrics[name].mean if name in view.metrics else None for view in views]
    values = ["" if mean is None else humanize.number(mean) for mean in means]
    return _row("Result", f"metric.{name}", f"Final {name}", values, _best_job(means, _better_choice(name)))


def _row(section: str, field: str, label: str, values: Sequence[str], best: int | None = None) -> ComparisonRow:
    differs = len(set(values)) > 1
    return ComparisonRow(section, field, label, tuple(values), differs, best if differs else None)  # type: ignore[arg-type]  # a literal at every call


_Choose = Callable[[Sequence[float]], float]


def _better_choice(name: str) -> _Choose | None:
    """Return min or max for a metric whose name says which way is better, else None."""
    parts = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    if any(part.endswith("loss") or part in _LOWER for part in parts):
        return min
    return max if any(part in _HIGHER for part in parts) else None


def _best_job(values: Sequence[float | None], choose: _Choose | None) -> int | None:
    """Return the place of the one best value of at least two, None for a tie."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if choose is None or len(known) < 2:
        return None
    best = choose(known)
    return values.index(best) if known.count(best) == 1 else None

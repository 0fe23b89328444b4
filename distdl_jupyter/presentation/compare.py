"""Several jobs side by side: their curves in one figure, what was asked and what came of each. Only what was measured.

Pure. A value counts as best only where it is known which way is better, and where one job alone has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.core.compared import Against, Compared, compared_figure
from distdl_jupyter.core.state import State
from distdl_jupyter.presentation.detail import spec_rows
from distdl_jupyter.presentation.metric import favourite
from distdl_jupyter.presentation.plain import finite
from distdl_jupyter.presentation.schema import ComparisonRow, Curve

if TYPE_CHECKING:
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView

#: Rows of the table that tells the curves.
_ROWS = 24
_LOWER = ("loss", "error", "perplexity", "mae", "mse", "rmse", "wer", "cer")
_HIGHER = ("acc", "accuracy", "f1", "auc", "precision", "recall", "r2", "bleu", "iou", "map", "dice")


@dataclass(frozen=True, slots=True)
class Subject:
    """One job to compare, as a reader holds it."""

    spec: JobSpec
    view: JobView
    book: SeriesBook


def metric_names(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Return the metrics of the jobs: those that most of them report first, then in the order of their first report."""
    names = list(dict.fromkeys(name for one in subjects for name in one.view.metrics))
    return tuple(sorted(names, key=lambda name: -sum(name in one.view.metrics for one in subjects)))


def chosen_metric(subjects: Sequence[Subject], wanted: str) -> str:
    """Return the metric to draw: the wanted one, else the favourite among those that most jobs report."""
    names = metric_names(subjects)
    if wanted:
        return wanted
    most = max((_reporting(subjects, name) for name in names), default=0)
    return favourite([name for name in names if _reporting(subjects, name) == most])


def _reporting(subjects: Sequence[Subject], name: str) -> int:
    return sum(name in one.view.metrics for one in subjects)


def compared_curve(
    subjects: Sequence[Subject], metric: str, *, against: Against = "step", log: bool = False, dark: bool = False,
    width: int | None = None, height: int | None = None,
) -> Curve:  # fmt: skip
    """Return the curves drawn and told; the first traces are the jobs in their order."""
    curves = [Compared(one.spec.id, one.book.band(metric), one.view.created) for one in subjects]
    drawn = compared_figure(curves, metric, against=against, log=log, dark=dark, width=width, height=height)
    return Curve(
        metric=metric,
        mode="compare",
        log=log,
        count=sum(one.book.count(metric) for one in subjects),
        data=tuple(drawn["data"]),
        layout=drawn["layout"],
        summary=_summary(metric, curves),
        table=_table(curves, against),
    )


def _summary(metric: str, curves: Sequence[Compared]) -> str:
    told = [f"{words.short_id(one.id)} ends at {words.number(one.band.last)} after {_steps(one)}"
            for one in curves if one.band.last is not None]  # fmt: skip
    return f"Curves of {metric}: {', '.join(told)}" if told else f"Curves of {metric or 'no metric'}: no values yet"


def _steps(one: Compared) -> str:
    return words.plural(one.band.last_step, "step")


def _table(curves: Sequence[Compared], against: Against) -> tuple[tuple[str, ...], ...]:
    """Return rows spread over the axis: the place, and each job's newest mean up to there; "" before and behind it."""
    places = sorted({place for one in curves for place in one.places(against)})
    if len(places) > _ROWS:
        places = [places[round(at * (len(places) - 1) / (_ROWS - 1))] for at in range(_ROWS)]
    known = [sorted(zip(one.places(against), (r.mean for r in one.band.rows), strict=True)) if one.band.rows else []
             for one in curves]  # fmt: skip
    return tuple((_place(place, against), *(_at(points, place) for points in known)) for place in places)


def _place(place: float, against: Against) -> str:
    return words.count(place) if against == "step" else words.seconds_taken(place)


def _at(points: list[tuple[float, float | None]], place: float) -> str:
    if not points or not points[0][0] <= place <= points[-1][0]:
        return ""
    mean = [value for at, value in points if at <= place][-1]
    return "not a number" if mean is None else words.number(mean)


def rows(subjects: Sequence[Subject], now: float) -> tuple[ComparisonRow, ...]:
    """Return what was asked of the jobs and what came of them at the moment ``now``, line by line."""
    return (*_asked(subjects), *_came(subjects, now))


def _asked(subjects: Sequence[Subject]) -> list[ComparisonRow]:
    """Return the lines of the specs and the plain values that travelled with the code."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for number, one in enumerate(subjects):
        for row in spec_rows(one.spec):
            if row.field != "name":
                found.setdefault((row.field, row.label), {})[number] = row.value
    for number, one in enumerate(subjects):
        for item in one.spec.captured:
            if item.kind == "value":
                text = item.detail.partition(" = ")[2] or item.detail
                found.setdefault((f"captured.{item.name}", item.name), {})[number] = text
    return [_row("Spec", *key, [values.get(n, "") for n in range(len(subjects))]) for key, values in found.items()]


def _came(subjects: Sequence[Subject], now: float) -> list[ComparisonRow]:
    views = [one.view for one in subjects]
    ended = [view.elapsed(now) if view.state is State.COMPLETED else None for view in views]
    found = [
        _row("Result", "state", "State", [words.STATE_WORDS[view.state] for view in views]),
        _row("Result", "reason", "Reason", [view.reason for view in views]),
        _row("Result", "elapsed", "Elapsed", [words.duration(view.elapsed(now)) for view in views], _best(ended, min)),
    ]
    steps = [_last_step(view) for view in views]
    found.append(_row("Result", "step", "Last step", ["" if s is None else words.count(s) for s in steps]))
    found.extend(_final(views, name) for name in metric_names(subjects))
    return [row for row in found if any(row.values)]


def _last_step(view: JobView) -> float | None:
    return max((step for rank in view.ranks if (step := finite(rank.last_step)) is not None), default=None)


def _final(views: Sequence[JobView], name: str) -> ComparisonRow:
    means = [view.metrics[name].mean if name in view.metrics else None for view in views]
    values = ["" if mean is None else words.number(mean) for mean in means]
    return _row("Result", f"metric.{name}", f"Final {name}", values, _best(means, _better(name)))


def _row(section: str, field: str, label: str, values: Sequence[str], best: int | None = None) -> ComparisonRow:
    differs = len(set(values)) > 1
    return ComparisonRow(section, field, label, tuple(values), differs, best if differs else None)  # type: ignore[arg-type]  # a literal at every call


Choice = Callable[[Sequence[float]], float]


def _better(name: str) -> Choice | None:
    """Return min or max for a metric whose name says which way is better, else None."""
    parts = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    if any(part.endswith("loss") or part in _LOWER for part in parts):
        return min
    return max if any(part in _HIGHER for part in parts) else None


def _best(values: Sequence[float | None], choose: Choice | None) -> int | None:
    """Return the place of the one best value of at least two, None for a tie."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if choose is None or len(known) < 2:
        return None
    best = choose(known)
    return values.index(best) if known.count(best) == 1 else None

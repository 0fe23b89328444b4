"""A sweep as text, as HTML, as a table, and as the plain data of its panel (``SweepPanel``)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast

from distdl_jupyter.core import humanize, space, sweep, table
from distdl_jupyter.core.humanize import duration, number, plural
from distdl_jupyter.core.state import State
from distdl_jupyter.node import headroom
from distdl_jupyter.views.job_table import StateName
from distdl_jupyter.views.wire import finite

if TYPE_CHECKING:
    import pandas as pd

    from distdl_jupyter.core.sweep import Study, Trial

SWEEP_MIME = "application/vnd.distdl.sweep+json"
#: Processes that the best is offered to run on, at most.
_MOST = 8


TrialState = StateName | Literal["pruned"]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial: ``values`` in the order of the parameters, as numbers or words; ``steps`` and ``means`` are its curve.

    ``done`` of ``total`` is its progress, the last step where none was reported. ``detail`` says why it ended early.
    """

    number: int
    id: str
    state: TrialState
    value: float | None
    values: tuple[float | str, ...]
    done: float | None
    total: float | None
    detail: str
    steps: tuple[float, ...]
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SweepPanel:
    """A sweep as far as it has come: ``trials`` by value, the best first; ``best`` is the number of the best, or None.

    ``done`` of ``size`` trials have ended. ``processes`` are so many as the best is offered to run on. ``problem`` says
    why it goes on no more, ``remedy`` what to do. ``code`` sets the best values.
    """

    id: str
    name: str
    state: StateName
    problem: str
    remedy: str
    words: tuple[str, ...]
    metric: str
    maximize: bool
    done: int
    size: int
    elapsed: float
    left: float | None
    parameters: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    best: int | None
    processes: int
    code: str


def panel(study: Study) -> SweepPanel:
    """Return what the panel of a sweep shows."""
    best = study.best
    return SweepPanel(
        id=study.id,
        name=study.group.name,
        state=study.state.value,
        problem=study.problem,
        remedy=study.hint,
        words=_settings(study),
        metric=study.plan.metric,
        maximize=study.plan.maximize,
        done=study.done,
        size=study.plan.trials,
        elapsed=sweep.duration(study),
        left=finite(sweep.left(study)),
        parameters=tuple(study.plan.parameters),
        trials=tuple(_row(trial, study) for trial in study.sorted()),
        best=best.number if best else None,
        processes=_processes(study),
        code=_code(best) if best else "",
    )


def _settings(study: Study) -> tuple[str, ...]:
    plan, spec = study.plan, study.spec
    each = humanize.processes(spec.node_count, spec.process_count_per_node)
    early = "" if plan.pruner == "none" else f"{plan.pruner} pruning"
    return tuple(
        filter(
            None,
            (spec.compute_target, f"{plan.sampler} sampler", f"{each} per trial, {plan.parallel} at a time", early),
        )
    )


def _row(trial: Trial, study: Study) -> TrialRow:
    axes = study.plan.parameters
    values = tuple(
        value_text(trial.params.get(name)) if isinstance(axis, space.Choice) else float(trial.params.get(name, 0))
        for name, axis in axes.items()
    )
    detail = "" if trial.state == "completed" else trial.says
    points = tuple((step, mean) for step, mean in trial.points if finite(mean) is not None)
    steps, means = zip(*points, strict=True) if points else ((), ())
    state = cast("TrialState", trial.state)
    return TrialRow(
        trial.number,
        trial.id,
        state,
        finite(trial.value),
        values,
        finite(trial.done),
        finite(trial.total),
        detail,
        steps,
        means,
    )


def _processes(study: Study) -> int:
    """Return on how many processes the best could run here: one for each GPU, else as many as there are cores."""
    from distdl_jupyter.core import gpus  # asked once, for a panel

    here = min(_MOST, len(gpus.visible()) or headroom.cores())
    return here if here > study.spec.process_count else 2 * study.spec.process_count


def _code(best: Trial) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in best.params.items())


def value_text(value: Any) -> str:
    """Return a parameter's value in short: numbers with three digits or so."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return str(value) if isinstance(value, int) else f"{value:.3g}"


class SweepTable(table.Display, list[Any]):
    """Trials, the best first, that show themselves as a table; ``to_pandas()`` has a row for each."""

    def __init__(self, study: Study) -> None:
        super().__init__(study.sorted())
        self._study = study

    def _rows(self) -> list[tuple[str, ...]]:
        names = [*self._study.plan.parameters]
        head = ("Trial", self._study.plan.metric, *names, "Progress", "State", "Why", "Id")
        rows = [
            (
                str(trial.number),
                "" if trial.value is None else number(trial.value),
                *(value_text(trial.params.get(name)) for name in names),
                progress(trial),
                trial.state.capitalize(),
                "" if trial.state == "completed" else trial.says,
                humanize.short_id(trial.id),
            )
            for trial in self
        ]
        return [head, *rows]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each trial: number, value, the parameters, state, job."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "trial": trial.number,
                    self._study.plan.metric: trial.value,
                    **trial.params,
                    "state": trial.state,
                    "job": trial.id,
                }
                for trial in self
            ]
        )

    def _parts(self) -> list[str | table.Rows]:
        return [self._rows() if self else "No trial has started yet."]


def progress(trial: Trial | TrialRow) -> str:
    """Return how far a trial has come in words."""
    if trial.done is None:
        return ""
    return f"{trial.done:g} of {trial.total:g}" if trial.total else f"step {trial.done:g}"


def lines(study: Study) -> list[str]:
    """Return what a sweep is, how far it is, its best trial, and what is wrong with it."""
    first = f"Sweep of {study.group.name} ({study.id}): {study.state.value}"
    parts = [first, " · ".join((*_settings(study), _counts(study)))]
    best = study.best
    if best is not None:
        values = ", ".join(f"{name} {value_text(value)}" for name, value in best.params.items())
        parts.append(f"Best: {study.plan.metric} {number(best.value or 0.0)} with {values} (trial {best.number})")
    return [*parts, *filter(None, [" ".join(filter(None, (study.problem, study.hint)))])]


def html(study: Study) -> str:
    """Return the same as HTML with the table of trials, as a notebook keeps it."""
    state = "" if study.state.ended else "Saved while it was running; this output is not updated. "
    parts = [*lines(study), f'{state}Open it again with distdl_jupyter.sweep("{study.id}")']
    *first, last = (f"<p>{escape(line)}</p>" for line in parts)
    return "".join((*first, SweepTable(study)._repr_html_(), last))


def mime_bundle(study: Study) -> dict[str, Any]:
    """Return the output of a cell: JupyterLab draws the sweep live by its id, other front ends what is known now."""
    text = "\n".join([*lines(study), *([repr(SweepTable(study))] if study.trials else [])])
    return {SWEEP_MIME: {"id": study.id, "version": 1}, "text/html": html(study), "text/plain": text}


def counted(study: Study) -> str:
    """Return how far a sweep is: ``14 of 20 trials``."""
    return f"{study.done} of {plural(study.plan.trials, 'trial')}"


def _counts(study: Study) -> str:
    running = sum(not trial.has_ended for trial in study.trials)
    pruned = sum(trial.state == "pruned" for trial in study.trials)
    failed = sum(trial.state in (State.FAILED, State.CANCELED) for trial in study.trials)
    more = [
        f"{running} running" if running else "",
        f"{pruned} pruned" if pruned else "",
        f"{failed} without a value" if failed else "",
    ]
    took = duration(sweep.duration(study))
    return " · ".join(filter(None, (counted(study), *more, took)))

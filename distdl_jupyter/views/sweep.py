"""A sweep as text, as HTML, as a table, and as the plain data of its panel (``SweepPanel``)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, space, table
from distdl_jupyter.core.humanize import duration, number, plural
from distdl_jupyter.core.space import Study, Trial
from distdl_jupyter.core.state import State
from distdl_jupyter.node import headroom
from distdl_jupyter.views.job_table import StateName

if TYPE_CHECKING:
    import pandas as pd

SWEEP_MIME = "application/vnd.distdl.sweep+json"
#: Processes that the best is offered to run on, at most.
_MOST = 8
_NO_TRIALS = "No trial has started yet."


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
    done: int
    size: int
    elapsed: float
    left: float | None
    parameters: tuple[str, ...]
    trials: tuple[Trial, ...]
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
        done=study.done,
        size=study.plan.trials,
        elapsed=space.duration(study),
        left=space.left(study),
        parameters=tuple(study.plan.parameters),
        trials=tuple(study.sorted()),
        best=best.number if best else None,
        processes=_processes(study),
        code="\n".join(f"{name} = {value!r}" for name, value in best.params.items()) if best else "",
    )


def _settings(study: Study) -> tuple[str, ...]:
    plan, spec = study.plan, study.spec
    each = humanize.processes(spec.node_count, spec.process_count_per_node)
    settings = (spec.compute_target, f"{plan.sampler} sampler", f"{each} per trial, {plan.parallel} at a time")
    return settings if plan.pruner == "none" else (*settings, f"{plan.pruner} pruning")


def _processes(study: Study) -> int:
    """Return on how many processes the best could run here: one for each GPU, else as many as there are cores."""
    from distdl_jupyter.core import machine  # asked once, for a panel

    here = min(_MOST, len(machine.gpu_numbers()) or headroom.cores())
    return here if here > study.spec.process_count else 2 * study.spec.process_count


def value_text(value: Any) -> str:
    """Return a parameter's value in short: numbers with three digits or so."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return str(value) if isinstance(value, int) else f"{value:.3g}"


class SweepTable(table.Display, list[Trial]):
    """Trials, the best first, that show themselves as a table; ``to_pandas()`` has a row for each."""

    def __init__(self, study: Study) -> None:
        super().__init__(study.sorted())
        self._study = study

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each trial: number, value, the parameters, state, job."""
        import pandas as pd

        metric = self._study.plan.metric
        return pd.DataFrame(
            [
                {"trial": trial.number, metric: trial.value, **trial.params, "state": trial.state, "job": trial.id}
                for trial in self
            ]
        )

    def _parts(self) -> list[str | table.Rows]:
        return [_trials(self._study)]


class SweepDisplay(table.Display):
    """A sweep with its trials, as a terminal shows it and a notebook keeps it."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def _parts(self) -> list[str | table.Rows]:
        """Return what the sweep is, how far it is, its best trial, what is wrong with it, and the trials."""
        study, best = self._study, self._study.best
        parts: list[str | table.Rows] = [
            f"Sweep of {study.group.name} ({study.id}): {study.state.value}",
            " · ".join((*_settings(study), _counts(study))),
        ]
        if best is not None:
            values = ", ".join(f"{name} {value_text(value)}" for name, value in best.params.items())
            parts.append(f"Best: {study.plan.metric} {number(best.value or 0.0)} with {values} (trial {best.number})")
        if study.problem:
            parts.append(f"{study.problem} {study.hint}".rstrip())
        return [*parts, _trials(study)]

    def _repr_html_(self) -> str:
        state = "" if self._study.state.ended else "Saved while it was running; this output is not updated. "
        hint = f'{state}Open it again with distdl_jupyter.sweep("{self._study.id}")'
        return f"{super()._repr_html_()}<p>{escape(hint)}</p>"


def mime_bundle(study: Study) -> dict[str, Any]:
    """Return the output of a cell: JupyterLab draws the sweep live by its id, other front ends what is known now."""
    shown = SweepDisplay(study)
    return {
        SWEEP_MIME: {"id": study.id, "version": 1},
        "text/html": shown._repr_html_(),
        "text/plain": str(shown),
    }


def _trials(study: Study) -> str | table.Rows:
    names = [*study.plan.parameters]
    rows = [
        (
            str(trial.number),
            "" if trial.value is None else number(trial.value),
            *(value_text(trial.params.get(name)) for name in names),
            _progress(trial),
            trial.state.capitalize(),
            "" if trial.state == "completed" else trial.says,
            humanize.short_id(trial.id),
        )
        for trial in study.sorted()
    ]
    return [("Trial", study.plan.metric, *names, "Progress", "State", "Why", "Id"), *rows] if rows else _NO_TRIALS


def _progress(trial: Trial) -> str:
    if trial.done is None:
        return ""
    return f"{trial.done:g} of {trial.total:g}" if trial.total else f"step {trial.done:g}"


def counted(study: Study) -> str:
    """Return how far a sweep is: ``14 of 20 trials``."""
    return f"{study.done} of {plural(study.plan.trials, 'trial')}"


def _counts(study: Study) -> str:
    running = sum(not trial.has_ended for trial in study.trials)
    pruned = sum(trial.state == "pruned" for trial in study.trials)
    failed = sum(trial.state in (State.FAILED, State.CANCELED) for trial in study.trials)
    counts = ((running, "running"), (pruned, "pruned"), (failed, "without a value"))
    more = (f"{many} {what}" for many, what in counts if many)
    return " · ".join((counted(study), *more, duration(space.duration(study))))

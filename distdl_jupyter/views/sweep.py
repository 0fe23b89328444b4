"""A sweep as text and HTML, as a DataFrame, and as plain data for its panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, machine
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import duration, number, plural
from distdl_jupyter.core.space import Study, Trial
from distdl_jupyter.node import devices
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    import pandas as pd

SWEEP_MIME = "application/vnd.distdl.sweep+json"


@dataclass(frozen=True, slots=True)
class SweepPanel:
    """A sweep so far, with ``trials`` from best to worst. ``best`` is the number of the best trial, or None.

    ``done`` of ``size`` trials have ended. ``processes`` is the suggested number for a run with the best values, which
    ``code`` sets. ``problem`` is the reason why the sweep does not continue, and ``remedy`` the fix.
    """

    id: str
    name: str
    state: State
    problem: str
    remedy: str
    settings: tuple[str, ...]
    metric: str
    done: int
    size: int
    elapsed: float
    remaining: float | None
    parameters: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: int | None
    processes: int
    code: str


def make_panel(study: Study) -> SweepPanel:
    """Return the data for the panel of a sweep."""
    best = study.best
    # One process for each GPU of this machine, else one for each core, at most 8.
    processes = min(8, len(machine.list_gpu_numbers()) or devices.cores())
    return from_fields(
        SweepPanel,
        study,
        name=study.group.name,
        remedy=study.hint,
        settings=_list_settings(study),
        metric=study.plan.metric,
        size=study.plan.trials,
        parameters=tuple(study.plan.parameters),
        trials=tuple(study.sort_trials()),
        best=best.number if best else None,
        processes=processes if processes > study.spec.process_count else 2 * study.spec.process_count,
        code="\n".join(f"{name} = {value!r}" for name, value in best.params.items()) if best else "",
    )


def _list_settings(study: Study) -> tuple[str, ...]:
    plan, spec = study.plan, study.spec
    processes = humanize.processes(spec.node_count, spec.process_count_per_node)
    settings = (spec.compute_target, f"{plan.sampler} sampler", f"{processes} per trial, {plan.parallel} at a time")
    return settings if plan.pruner == "none" else (*settings, f"{plan.pruner} pruning")


class SweepTable(humanize.Display, list[Trial]):
    """Trials, the best first, displayed as a table; ``to_pandas()`` returns a row for each."""

    def __init__(self, study: Study) -> None:
        super().__init__(study.sort_trials())
        self._study = study

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each trial: its number, value, parameters, state and job."""
        import pandas as pd

        metric = self._study.plan.metric
        return pd.DataFrame(
            {"trial": trial.number, metric: trial.value, **trial.params, "state": trial.state, "job": trial.id}
            for trial in self
        )

    def _parts(self) -> list[str | humanize.Rows]:
        names, metric = [*self._study.plan.parameters], self._study.plan.metric
        rows = [
            (
                str(trial.number),
                "" if trial.value is None else number(trial.value),
                *(format_value(trial.params.get(name)) for name in names),
                _format_progress(trial),
                trial.state.capitalize(),
                "" if trial.state == "completed" else trial.message,
                humanize.short_id(trial.id),
            )
            for trial in self
        ]
        header = ("Trial", metric, *names, "Progress", "State", "Why", "Id")
        return [[header, *rows] if rows else "No trial has started yet."]


class SweepDisplay(SweepTable):
    """A sweep for terminals and saved notebooks: settings, progress, best trial, problem, and the trials."""

    def _parts(self) -> list[str | humanize.Rows]:
        study, best = self._study, self._study.best
        parts: list[str | humanize.Rows] = [
            f"Sweep of {study.group.name} ({study.id}): {study.state.value}",
            " · ".join((*_list_settings(study), format_count(study), duration(study.elapsed))),
        ]
        if best is not None:
            values = ", ".join(f"{name} {format_value(value)}" for name, value in best.params.items())
            parts.append(f"Best: {study.plan.metric} {number(best.value or 0.0)} with {values} (trial {best.number})")
        if study.problem:
            parts.append(f"{study.problem} {study.hint}".rstrip())
        return [*parts, *super()._parts(), f'Open it again: distdl_jupyter.sweep("{study.id}")']


def make_mime_bundle(study: Study) -> dict[str, Any]:
    """Return the output of a cell: JupyterLab draws the sweep live by its id, other front ends its current state."""
    display = SweepDisplay(study)
    reference = {"id": study.id, "version": 1}
    return {SWEEP_MIME: reference, "text/html": display._repr_html_(), "text/plain": str(display)}


def format_value(value: Any) -> str:
    """Return a parameter's value as text; a float has three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _format_progress(trial: Trial) -> str:
    if trial.done is None:
        return ""
    return f"{trial.done:g} of {trial.total:g}" if trial.total else f"step {trial.done:g}"


def format_count(study: Study) -> str:
    """Return the progress of a sweep: ``14 of 20 trials``."""
    return f"{study.done} of {plural(study.plan.trials, 'trial')}"

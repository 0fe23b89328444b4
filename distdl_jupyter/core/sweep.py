"""The plan and the progress of a sweep as plain data; ``sweep_study`` reads them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.series import Row
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.state import State

#: The end reason of a trial whose sweep was stopped.
STOPPED = "The sweep was stopped."
#: Prefix of the end reason of a pruned trial.
PRUNED = "Pruned: "
#: Ratio between the steps at which trials are compared; maximum number of points of a drawn curve.
_GROWTH, _POINTS = 1.05, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The plan of a sweep. ``flags`` are those of a script by parameter, empty if names or arguments are set."""

    parameters: space.Space
    trials: int
    metric: str
    maximize: bool = False
    parallel: int = 1
    sampler: str = "tpe"
    pruner: str = "median"
    #: The first step at which trials may be pruned; None: after 10 % of a trial, once 5 trials have finished.
    prune_after: int | None = None
    seed: int | None = None
    flags: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "parameters": space.to_json(self.parameters)}

    @classmethod
    def of(cls, group: Group) -> SweepPlan:
        """Return the plan of a sweep; unknown fields are ignored. Raises JobNotFound for an unknown format."""
        known = {name: value for name, value in group.plan.items() if name in cls.__dataclass_fields__}
        try:
            return cls(**{**known, "parameters": space.from_json(known["parameters"])})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise JobNotFound(
                f"Sweep {group.id} cannot be loaded: its plan has an unknown format ({type(error).__name__}: {error}).",
                code="sweep-plan-invalid",
                hint="Another version of distdl_jupyter may have written it. Use that version, or start a new sweep.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial so far: ``state`` is that of its job or "pruned", ``value`` the newest mean of the metric."""

    number: int
    id: str
    params: Mapping[str, Any]
    state: str
    value: float | None
    created: float
    ended: float | None = None
    says: str = ""
    #: Reported progress and its total, else the last step.
    done: float | None = None
    total: float | None = None
    #: Step and mean over ranks.
    points: tuple[tuple[float, float], ...] = ()

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because its sweep was stopped; another trial with its values replaces it."""
        return self.state == "canceled" and self.says == STOPPED

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.state == "pruned" or State(self.state).ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A sweep so far: ``trials`` by number, without those that were lost or run again."""

    id: str
    spec: JobSpec
    plan: SweepPlan
    state: State
    trials: tuple[Trial, ...]
    problem: str = ""
    hint: str = ""
    ended: float | None = None

    @property
    def group(self) -> Group:
        """The group of its trials."""
        assert self.spec.group is not None
        return self.spec.group

    @property
    def done(self) -> int:
        """The number of trials that have ended and were not stopped."""
        return sum(trial.has_ended and not trial.was_stopped for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The best trial of those that completed, None before the first."""
        completed = [trial for trial in self.trials if trial.state == "completed" and trial.value is not None]
        return min(completed, key=lambda trial: self.order(trial.value), default=None)

    def order(self, value: float | None) -> float:
        """Return what sorts values, the better ones first."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self.plan.maximize else value

    def sorted(self) -> list[Trial]:
        """Return the trials by value, the best first."""
        return sorted(self.trials, key=lambda trial: (self.order(trial.value), trial.number))


def duration(study: Study) -> float:
    """Return how many seconds the sweep has been running."""
    return max(0.0, (study.ended or time.time()) - study.spec.created)


def left(study: Study) -> float | None:
    """Estimate the remaining seconds from the duration of ended trials; None before the first has ended."""
    ended = [trial for trial in study.trials if trial.ended is not None]
    if study.state is not State.RUNNING or not ended:
        return None
    each = sum((trial.ended or 0.0) - trial.created for trial in ended) / len(ended)
    now = time.time()
    going = sum(max(0.0, each - (now - trial.created)) for trial in study.trials if trial.ended is None)
    to_come = max(0, study.plan.trials - study.done - sum(not trial.has_ended for trial in study.trials))
    return (going + each * to_come) / max(1, study.plan.parallel)


def thinned(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return step and mean of enough rows to draw a curve, including the last."""
    known = [(row.step, float(row.mean)) for row in rows if row.mean is not None and math.isfinite(row.mean)]
    every = -(-len(known) // _POINTS)
    return [*known[:-1:every], known[-1]] if known else []


def compared(rows: Sequence[Row], after: int, *, complete: bool) -> list[tuple[int, float]]:
    """Return step and mean at the comparison steps after ``after``: all steps up to 40, then fewer.

    The steps are the same for all trials at any time; the value is the newest mean up to that step.
    ``complete`` is true if all ranks have reported the last row.
    """
    known = [row for row in rows if row.mean is not None and row.step >= 0]
    points: list[tuple[int, float]] = []
    at, before, newest = 0, -1, known[-1].step if known else -1
    while before < newest:
        step = max(before + 1, int(before * _GROWTH))
        if step > newest:  # the last row counts if nothing follows it
            break
        if step == newest and not complete:
            break
        mean: float | None = None
        while at < len(known) and known[at].step <= step:
            mean, at = known[at].mean, at + 1
        if mean is not None and step > after:
            points.append((step, float(mean)))
        before = step
    return points

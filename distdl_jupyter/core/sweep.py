"""What a sweep was asked for and how far it has come, as plain data; who reads it is ``sweep_study``."""

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

#: The reason of a trial's end when its sweep is stopped.
STOPPED = "The sweep was stopped."
#: What the reason of a trial begins with that was stopped early.
PRUNED = "Pruned: "
#: How far the steps at which trials are compared lie apart, as a factor; points of a curve that is drawn.
_GROWTH, _POINTS = 1.05, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for. ``flags`` are those of a script, by parameter; none where names or arguments are set."""

    parameters: space.Space
    trials: int
    metric: str
    maximize: bool = False
    parallel: int = 1
    sampler: str = "tpe"
    pruner: str = "median"
    #: The step from which on trials may be stopped early; None: from 10 % of a trial on, once 5 have finished.
    prune_after: int | None = None
    seed: int | None = None
    flags: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "parameters": space.to_json(self.parameters)}

    @classmethod
    def of(cls, group: Group) -> Plan:
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
    """One trial as far as it has come: ``state`` is its job's, or "pruned", ``value`` the metric's newest mean."""

    number: int
    id: str
    params: Mapping[str, Any]
    state: str
    value: float | None
    created: float
    ended: float | None = None
    says: str = ""
    #: Progress that was reported, of how much; else the last step.
    done: float | None = None
    total: float | None = None
    #: Step and mean over ranks.
    points: tuple[tuple[float, float], ...] = ()

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because its sweep was stopped: another one with its values takes its place."""
        return self.state == "canceled" and self.says == STOPPED

    @property
    def has_ended(self) -> bool:
        """Whether it goes on no more."""
        return self.state == "pruned" or State(self.state).ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A sweep as far as it has come: ``trials`` by number, without those that were lost or have been run again."""

    id: str
    spec: JobSpec
    plan: Plan
    state: State
    trials: tuple[Trial, ...]
    problem: str = ""
    hint: str = ""
    ended: float | None = None

    @property
    def group(self) -> Group:
        """What its trials have in common."""
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
    """Return how many seconds the sweep lasted up to now."""
    return max(0.0, (study.ended or time.time()) - study.spec.created)


def left(study: Study) -> float | None:
    """Return about how many seconds it still takes, by what trials took up to now; None before the first has ended."""
    ended = [trial for trial in study.trials if trial.ended is not None]
    if study.state is not State.RUNNING or not ended:
        return None
    each = sum((trial.ended or 0.0) - trial.created for trial in ended) / len(ended)
    now = time.time()
    going = sum(max(0.0, each - (now - trial.created)) for trial in study.trials if trial.ended is None)
    to_come = max(0, study.plan.trials - study.done - sum(not trial.has_ended for trial in study.trials))
    return (going + each * to_come) / max(1, study.plan.parallel)


def thinned(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return step and mean of some rows that are enough to draw a curve, the last one among them."""
    known = [(row.step, float(row.mean)) for row in rows if row.mean is not None and math.isfinite(row.mean)]
    every = -(-len(known) // _POINTS)
    return [*known[:-1:every], known[-1]] if known else []


def compared(rows: Sequence[Row], after: int, *, complete: bool) -> list[tuple[int, float]]:
    """Return step and mean at the steps behind ``after`` at which trials are compared: all up to 40, then fewer.

    They are the same in all trials, whenever a trial is looked at: the value is the newest mean up to that step.
    ``complete`` says that all ranks have reported the last row.
    """
    known = [row for row in rows if row.mean is not None and row.step >= 0]
    points: list[tuple[int, float]] = []
    at, before, newest = 0, -1, known[-1].step if known else -1
    while before < newest:
        step = max(before + 1, int(before * _GROWTH))
        if step > newest:  # the last one counts where nothing follows it
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

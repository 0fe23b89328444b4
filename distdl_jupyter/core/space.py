"""A sweep as plain data: its search space, its plan and its progress.

The search space has a range, a list of values or one of Optuna's distributions for each parameter.
"""

from __future__ import annotations

import ast
import bisect
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.series import Row
from distdl_jupyter.core.spec import Group, JobSpec

#: Maximum number of values of a choice, and of parameters of a sweep.
MAX_VALUES = 100
#: The reason with which a trial ends if its sweep is stopped, and the beginning of the reason if it is pruned.
STOP_REASON, PRUNED_PREFIX = "The sweep was stopped.", "Pruned: "
#: Ratio between consecutive steps at which trials are compared, and the maximum number of points of a drawn curve.
_STEP_RATIO, _MAX_CURVE_POINTS = 1.05, 100
#: Errors of Python's parser, the last two for text that is nested too deeply.
_PARSE_ERRORS = (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError)
_CALL = re.compile(r"([\w.]+)\(.*\)", re.DOTALL)
#: A parameter with its values at the start of the remaining line; a call may contain spaces.
_PARAMETER = re.compile(r"\s*([A-Za-z_]\w*)=(\w+\([^()]*\)|\[[^\]]*\]|[^\s'\"]+|'[^']*'|\"[^\"]*\")(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included: on a log scale with ``log``, only integers with ``whole``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A list of values to choose from."""

    values: tuple[Any, ...]


Space = dict[str, Range | Choice]


def uniform(low: float, high: float) -> Range:
    """Return a parameter with numbers from ``low`` to ``high``. Raises InvalidSpec."""
    return _make_range("uniform", low, high)


def loguniform(low: float, high: float) -> Range:
    """Return a parameter with numbers from ``low`` (above 0) to ``high`` on a log scale. Raises InvalidSpec."""
    return _make_range("loguniform", low, high, log=True)


def integers(low: int, high: int, *, log: bool = False) -> Range:
    """Return a parameter with the integers from ``low`` to ``high``, both included. Raises InvalidSpec."""
    return _make_range("integers", low, high, log=log, whole=True)


def choice(values: Sequence[Any]) -> Choice:
    """Return a parameter with these values: numbers, strings, True, False or None. Raises InvalidSpec."""
    return _make_choice(values, "choice")


def _make_error(code: str, message: str, hint: str = "") -> InvalidSpec:
    return InvalidSpec(message, code=code, field="parameters", hint=hint)


def _make_range(name: str, low: Any, high: Any, *, log: bool = False, whole: bool = False) -> Range:
    for value in (low, high):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise _make_error("distribution-bounds-not-numbers", f"{name} needs two numbers, not {value!r:.40}.")
    label = f"{name}({low:g}, {high:g})"
    if low >= high:
        raise _make_error("distribution-empty", f"{label} is empty: the first number must be below the second.")
    if log and low <= 0:
        message = f"{label} begins at {low:g}, but a logarithmic range must begin above 0."
        raise _make_error("distribution-logarithm", message, "Use a lower bound above 0, or uniform.")
    if whole and (low % 1 or high % 1):
        raise _make_error("distribution-integers", f"{label}: the bounds must be integers.")
    return Range(low, high, log, whole)


def _make_choice(values: Any, name: str) -> Choice:
    options = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else ()
    if not 1 <= len(options) <= MAX_VALUES:
        message = f"{name} must be a list of 1 to {MAX_VALUES} values such as [64, 128], not {values!r:.40}."
        raise _make_error("parameter-values-not-a-list", message)
    for value in options:
        if not (math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int | bool | None)):
            hint = "Use finite numbers, strings, True, False or None, and map them to objects in the training code."
            raise _make_error("parameter-value-invalid", f"{name} has the value {value!r:.40}.", hint)
    return Choice(tuple(dict.fromkeys(options)))  # for Optuna, equal values are the same, such as 64 and 64.0


def check_space(parameters: Any) -> Space:
    """Return the checked search space by parameter name. Raises InvalidSpec."""
    if not isinstance(parameters, Mapping) or not 1 <= len(parameters) <= MAX_VALUES:
        message = "The parameters of a sweep must be a dict from names to ranges or lists of values."
        hint = 'Use a dict such as {"lr": loguniform(1e-4, 1e-1), "width": [64, 128]}.'
        raise _make_error("parameters-not-a-dict", message, hint)
    space: Space = {}
    for name, domain in ((str(name), domain) for name, domain in parameters.items()):
        type_name = type(domain).__name__
        if isinstance(domain, Range | Choice):
            space[name] = domain
        elif isinstance(domain, list | tuple | range) or hasattr(domain, "choices"):  # Optuna's distribution
            space[name] = _make_choice(getattr(domain, "choices", domain), name)
        elif type_name in ("FloatDistribution", "IntDistribution") and domain.step in (None, 1):
            is_integer = type_name == "IntDistribution"
            label = "integers" if is_integer else "loguniform" if domain.log else "uniform"
            space[name] = _make_range(label, domain.low, domain.high, log=domain.log, whole=is_integer)
        else:
            message = f"{name} must be a range such as loguniform(1e-4, 1e-1) or a list of values, not {domain!r:.40}."
            hint = "Set values that are the same in all trials in the code or in kwargs=."
            raise _make_error("parameter-not-a-range", message, hint)
    return space


_DISTRIBUTIONS: dict[str, Callable[..., Range | Choice]] = {
    function.__name__: function for function in (uniform, loguniform, integers, choice)
}


def parse_domain(name: str, text: str) -> Range | Choice:
    """Parse a domain on a magic line, such as ``loguniform(1e-4, 1e-1)`` or ``64,128``. Raises InvalidSpec."""
    text = text.strip()
    if match := _CALL.fullmatch(text):
        try:
            call: Any = ast.parse(text, mode="eval").body
            named = {argument.arg: ast.literal_eval(argument.value) for argument in call.keywords}
            return _DISTRIBUTIONS[match[1]](*map(ast.literal_eval, call.args), **named)
        except (KeyError, *_PARSE_ERRORS):
            hint = f"Use uniform(0, 0.5), loguniform(1e-4, 1e-1), integers(1, 8), or a list: {name}=64,128."
            raise _make_error("parameters-unreadable", f"{text:.40} is not a valid distribution.", hint) from None
    values: list[Any] = []
    for part in filter(None, map(str.strip, text.removeprefix("[").removesuffix("]").split(","))):
        try:
            value = ast.literal_eval(part)
        except _PARSE_ERRORS:
            value = part
        values.append(value if isinstance(value, str | int | float | bool | None) else part)
    if len(values) < 2:
        message = f"{name}={text:.40} has only one value, so there is nothing to vary."
        hint = f"Use a list or a range: {name}=64,128 or {name}='loguniform(1e-4,1e-1)'."
        raise _make_error("parameter-single-value", message, hint)
    return _make_choice(values, name)


def parse_line(line: str) -> tuple[Space, str]:
    """Return the space at the start of a line (``lr=uniform(0,1) width=64,128``) and the rest. Raises InvalidSpec."""
    domains: dict[str, Any] = {}
    while match := _PARAMETER.match(line):
        domains[match[1]] = parse_domain(match[1], match[2].strip("'\""))
        line = line[match.end() :]
    if not domains:
        hint = "Begin the line with one, such as lr=loguniform(1e-4,1e-1) or width=64,128."
        raise _make_error("parameters-missing", "A sweep needs at least one parameter.", hint)
    return check_space(domains), line


def get_first_values(space: Space | str) -> dict[str, Any]:
    """Return the first value of each parameter of a space, or of a line that begins with one ({} if it is invalid)."""
    try:
        domains = parse_line(space)[0] if isinstance(space, str) else space
    except InvalidSpec:
        return {}
    return {
        name: domain.values[0] if isinstance(domain, Choice) else int(domain.low) if domain.whole else domain.low
        for name, domain in domains.items()
    }


def count_combinations(space: Space) -> int | None:
    """Return the number of combinations, or None if a parameter has infinitely many values."""
    if any(isinstance(domain, Range) and not domain.whole for domain in space.values()):
        return None
    return math.prod(
        len(domain.values) if isinstance(domain, Choice) else int(domain.high - domain.low) + 1
        for domain in space.values()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The plan of a sweep. ``flags`` maps parameters to a script's flags, or is empty for variables and arguments."""

    parameters: Space
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

    @classmethod
    def from_group(cls, group: Group) -> SweepPlan:
        """Return the plan of a sweep; unknown fields are ignored. Raises JobNotFound for an unknown format."""
        plan = {name: value for name, value in group.plan.items() if name in cls.__dataclass_fields__}
        try:
            parameters = {
                name: Choice(tuple(fields["values"])) if "values" in fields else Range(**fields)
                for name, fields in plan["parameters"].items()
            }
            return cls(**{**plan, "parameters": parameters})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            message = f"Sweep {group.id} cannot be loaded: its plan has an unknown format ({error!r})."
            hint = "Another version of distdl_jupyter may have written it. Use that version, or start a new sweep."
            raise JobNotFound(message, code="sweep-plan-invalid", hint=hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The progress of a trial: ``state`` is its job's state or "pruned", ``value`` the newest mean of the metric.

    ``done`` and ``total`` are the reported progress, or the last step; ``points`` are step and mean over ranks.
    """

    number: int
    id: str
    params: Mapping[str, Any]
    state: str
    value: float | None
    created: float
    ended: float | None = None
    message: str = ""
    done: float | None = None
    total: float | None = None
    points: tuple[tuple[float, float], ...] = ()

    @property
    def was_stopped(self) -> bool:
        """Whether the trial ended because the sweep was stopped; another trial with its values replaces it."""
        return self.state == "canceled" and self.message == STOP_REASON

    @property
    def has_ended(self) -> bool:
        """Whether the trial has ended."""
        return self.state == "pruned" or State(self.state).ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The progress of a sweep: ``trials`` in numerical order, without trials that were lost or rerun."""

    id: str
    spec: JobSpec
    group: Group
    plan: SweepPlan
    state: State
    trials: tuple[Trial, ...]
    problem: str = ""
    hint: str = ""
    ended: float | None = None

    @property
    def done(self) -> int:
        """The number of trials that ended and were not stopped."""
        return sum(trial.has_ended and not trial.was_stopped for trial in self.trials)

    def sort_trials(self) -> list[Trial]:
        """Return the trials by value, the best first; trials without a finite value are last."""
        sign = -1 if self.plan.maximize else 1

        def get_key(trial: Trial) -> tuple[float, int]:
            is_known = trial.value is not None and math.isfinite(trial.value)
            return (sign * (trial.value or 0.0) if is_known else math.inf), trial.number

        return sorted(self.trials, key=get_key)

    @property
    def best(self) -> Trial | None:
        """The best completed trial, or None if no trial has completed."""
        return next((t for t in self.sort_trials() if t.state == "completed" and t.value is not None), None)

    @property
    def elapsed(self) -> float:
        """The seconds from the start of the sweep until its end, or until now."""
        return max(0.0, (self.ended or time.time()) - self.spec.created)

    @property
    def remaining(self) -> float | None:
        """The remaining seconds, estimated from the ended trials, or None before the first trial has ended."""
        durations = [trial.ended - trial.created for trial in self.trials if trial.ended is not None]
        if self.state is not State.RUNNING or not durations:
            return None
        mean, now = sum(durations) / len(durations), time.time()
        active = [max(0.0, mean - (now - trial.created)) for trial in self.trials if trial.ended is None]
        not_started = max(0, self.plan.trials - self.done - sum(not trial.has_ended for trial in self.trials))
        return (sum(active) + mean * not_started) / max(1, self.plan.parallel)


def sample_points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return step and mean of at most about ``_MAX_CURVE_POINTS`` rows at equal intervals, and of the last row."""
    points = [(row.step, float(row.mean)) for row in rows if row.mean is not None and math.isfinite(row.mean)]
    stride = -(-len(points) // _MAX_CURVE_POINTS)
    return [*points[:-1:stride], points[-1]] if points else []


def get_comparison_points(rows: Sequence[Row], after: int, *, complete: bool) -> list[tuple[int, float]]:
    """Return step and mean at the comparison steps after ``after``: all steps up to 40, then fewer.

    The mean is the newest one up to the step. The last row counts only if ``complete``: all ranks have reported it.
    """
    measured = [(row.step, float(row.mean)) for row in rows if row.mean is not None and row.step >= 0]
    limit = measured[-1][0] + complete if measured else 0
    points: list[tuple[int, float]] = []
    step = 0
    while step < limit:
        index = bisect.bisect_right(measured, (step, math.inf))
        if index and step > after:
            points.append((step, measured[index - 1][1]))
        step = max(step + 1, int(step * _STEP_RATIO))
    return points

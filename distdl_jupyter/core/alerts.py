"""Alerts of a job: its end, a stall, a NaN or infinite metric, or a metric that meets a rule of the user."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import Event, State
from distdl_jupyter.core.humanize import number

if TYPE_CHECKING:
    from distdl_jupyter.core.view import JobView

#: Prefix of the code of a note about an alert.
CODE_PREFIX = "alert-"
_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
#: A rule: metric, comparison and limit.
_RULE = re.compile(r"\s*(?P<metric>\S.*?)\s*(?P<comparison>>=|<=|>|<)\s*(?P<limit>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert; ``text`` is one sentence."""

    kind: Literal["end", "failure", "stall", "nan", "rule"]
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A metric's mean over ranks compared with a limit: ``val_acc > 0.9``."""

    metric: str
    comparison: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether a value satisfies the rule; NaN never does."""
        return bool(_COMPARISONS[self.comparison](value, self.limit))

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.limit:g}"


def parse_rule(text: str, field: str = "notify_when") -> Rule:
    """Parse a rule. Raises InvalidSpec."""
    if (match := _RULE.fullmatch(text)) is None:
        message = f'{field} must compare a metric with a number, not {text!r}. Use a rule such as "val_acc > 0.9".'
        raise InvalidSpec(message, code="alert-rule-invalid", field=field)
    return Rule(match["metric"], match["comparison"], float(match["limit"]))


def check_rules(value: Any, field: str) -> tuple[str, ...] | None:
    """Return the rules in normal form, or None if there are none. Raises InvalidSpec."""
    rules = value if isinstance(value, list | tuple) else [value] if value else ()
    return tuple(str(parse_rule(str(text), field)) for text in rules) or None


class AlertWatch:
    """Finds the alerts in a job's events: its stalls, its end, and each rule and each NaN metric once."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self._pending_rules = [parse_rule(text) for text in rules]
        self._nan_metrics: set[str] = set()

    def check(self, event: Event, view: JobView) -> Iterator[Alert]:
        """Yield the alerts of the next event, which the view already includes."""
        if event["type"] == "metric":
            yield from self._check_metrics(event, view)
        elif event["type"] == "stall" and event.get("text"):
            yield Alert("stall", str(event["text"]))
        elif event["type"] == "state" and view.state in (State.FAILED, State.LOST):
            yield Alert("failure", view.reason or "The job failed.")
        elif event["type"] == "state" and view.state.ended:
            metric = next(iter(view.metrics.values()), None)
            suffix = f" {metric.name} is {number(metric.mean)} at step {number(metric.step)}." if metric else ""
            yield Alert("end", f"The job {'was canceled' if view.state is State.CANCELED else 'completed'}.{suffix}")

    def skip(self, event: Event) -> None:
        """Do not repeat the alert of an event that an earlier supervisor wrote."""
        text = str(event.get("text", ""))
        if event.get("code") == f"{CODE_PREFIX}rule":
            self._pending_rules = [pending for pending in self._pending_rules if not text.startswith(f"{pending}:")]
        elif event.get("code") == f"{CODE_PREFIX}nan":
            self._nan_metrics.add(text.partition(" is ")[0])

    def _check_metrics(self, event: Event, view: JobView) -> Iterator[Alert]:
        for name, value in event["values"].items():
            if not math.isfinite(float(value)) and name not in self._nan_metrics:
                self._nan_metrics.add(name)
                step = number(float(event["step"]))
                yield Alert("nan", f"{name} is {float(value):g} on rank {event['rank']} at step {step}.")
        for pending in self._pending_rules[:]:
            metric = view.metrics.get(pending.metric)
            if metric is not None and pending.metric in event["values"] and pending.holds(metric.mean):
                self._pending_rules.remove(pending)
                step = number(metric.step)
                yield Alert("rule", f"{pending}: mean {pending.metric} is {number(metric.mean)} at step {step}.")

"""Continuous step numbers for training code that restarts its count, for example with each epoch.

Every metric has its own step count. If a count returns to its first step, it continues after its last one, and metrics
logged at the same steps move together. If a count returns to a later step that was logged before (because a checkpoint
was loaded in the process), the values logged from there on are replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

#: Number of reported steps remembered per metric, to tell a return to an earlier step from a late report.
_RECENT = 1000


class StepAssignment(NamedTuple):
    """Metrics and the step at which they are stored. ``replace``: they replace what was logged from there on."""

    step: float
    names: list[str]
    replace: bool


@dataclass(slots=True)
class _Count:
    """The step count of one metric: its first and last step since it started over, and the offset added to them."""

    first: float
    last: float
    offset: float = 0
    stride: float = 1
    #: Whether it is logged at the same steps as another metric.
    shared: bool = False
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def is_at(self, step: float) -> bool:
        """Return whether ``step`` is the count's last step or the one that follows it."""
        return self.last <= step <= self.last + self.stride

    def start_over(self, step: float, offset: float) -> None:
        """Restart the count at ``step``."""
        self.first = self.last = step
        self.offset = offset
        self.recent.clear()

    def continued(self, step: float) -> float:
        """Return the offset that makes ``step`` follow the last step."""
        return self.offset + self.last + self.stride - step

    def goes_back(self, step: float) -> bool:
        """Handle a step below the last one; return whether it was logged before and is logged again."""
        if step in self.recent or (self.recent and step < self.recent[0] and len(self.recent) == _RECENT):
            while self.recent and self.recent[-1] >= step:
                self.recent.pop()
            self.last = step
            return True
        if step < self.first:
            self.first = self.last = step  # a decreasing count
        return False


class StepAxis:
    """The steps of all metrics of one process."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        #: The most recently used count.
        self._newest: _Count | None = None
        #: The first metric whose count started over, and the step at which it did.
        self.started_over: tuple[str, float] | None = None

    def assign_steps(self, step: float, names: Iterable[str]) -> list[StepAssignment]:
        """Return where to store metrics that are logged at ``step``."""
        groups: dict[tuple[float, bool], list[str]] = {}
        counts = self._counts
        # A new metric follows the others of its call, so process those first.
        for name in sorted(names, key=lambda name: name not in counts):
            groups.setdefault(self._assign_step(name, step), []).append(name)
        return [StepAssignment(placed, group, replace) for (placed, replace), group in groups.items()]

    def _assign_step(self, name: str, step: float) -> tuple[float, bool]:
        count, newest, replace = self._counts.get(name), self._newest, False
        if count is None:
            count = self._counts[name] = _Count(step, step)
            if newest is not None and newest.is_at(step):
                count.offset, count.shared, newest.shared = newest.offset, True, True
        elif newest is not None and newest is not count and count.shared and self._moved(count, newest, step):
            pass
        elif step > count.last:
            count.stride, count.last = step - count.last, step
        elif step == count.last:
            pass
        elif step <= count.first < count.last:
            self.started_over = self.started_over or (name, step)
            count.start_over(step, count.continued(step))
        else:
            replace = count.goes_back(step)
        if not count.recent or count.recent[-1] != step:
            count.recent.append(step)
        self._newest = count
        return count.offset + step, replace

    def _moved(self, count: _Count, newest: _Count, step: float) -> bool:
        """Restart a count if the metric logged before it restarted; return whether it did."""
        if newest.is_at(step):
            if newest.offset <= count.offset:
                return False
            count.start_over(step, newest.offset)
            return True
        if step == count.first == count.last < newest.last and newest.offset == count.offset:
            count.start_over(step, newest.continued(step))
            return True
        count.shared = step == count.last
        return False

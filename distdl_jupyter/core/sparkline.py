"""The way of one number through a job in a few points: enough for a curve as small as a word.

However many points come, at most ``MOST`` are kept, evenly spread: whenever they are that many, every second one goes
and from then on only every second new one is taken. The real curves are ``core.series``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

#: Most points that are kept.
MOST = 64


@dataclass(slots=True)
class Trail:
    """The points so far; of ``every`` finished steps one is kept, and ``passed`` were passed by since the last."""

    points: list[float] = field(default_factory=list)
    every: int = 1
    passed: int = 0
    #: The newest step, which goes on until a later one begins.
    step: float = -math.inf
    #: The first step of all.
    first: float = math.inf

    def finishes(self, step: float, steps: int = 1) -> bool:
        """Take notice of a step, the last of so many, and say whether the value before it is to be kept (``keep``)."""
        if not step > self.step:
            return False
        begins, self.step = self.step == -math.inf, step
        self.first = min(self.first, step)
        if begins:
            return False
        self.passed += steps
        return self.passed >= self.every

    def keep(self, value: float) -> None:
        """Keep one point."""
        self.passed = 0
        self.points.append(value)
        if len(self.points) >= MOST:
            # The last of each pair stays: the next one kept follows it after twice as many steps.
            del self.points[::2]
            self.every *= 2

    def go_back(self, step: float) -> None:
        """Forget what was kept of ``step`` and later ones, as nearly as can be said: they come once more."""
        if step <= self.step:
            span = self.step - self.first
            share = min(1.0, (self.step - step) / span) if span > 0 else 1.0
            del self.points[len(self.points) - round(share * len(self.points)) :]
        self.step, self.passed = -math.inf, 0

    def to(self, newest: float, most: int) -> list[float]:
        """Return at most ``most`` points, evenly spread, that end in ``newest``."""
        points = [*self.points, newest]
        if len(points) <= most:
            return points
        return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]

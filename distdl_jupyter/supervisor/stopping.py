"""Ending a job's processes: INT, then TERM, then KILL, with a visible grace between them.

A state machine that is asked every tick. It decides by the clock and by who is left, and knows nothing of events.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Step:
    """Send ``signal`` ("" sends nothing) and then wait ``grace`` seconds."""

    signal: str
    grace: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What was just done, for the view: seconds until the next signal and until KILL (None: no more)."""

    signal: str
    next: str
    next_in: float | None
    kill_in: float | None


def gentle(grace: float) -> tuple[Step, ...]:
    """A stop that was asked for: training code may save its work after INT."""
    return (Step("INT", grace), Step("TERM", 2 * grace), Step("KILL", 1.0))


def after_failure() -> tuple[Step, ...]:
    """A rank failed: the others get a moment to report what they saw, then must be gone within 5 s in all."""
    return (Step("", 1.0), Step("TERM", 1.5), Step("KILL", 1.0))


def after_hang() -> tuple[Step, ...]:
    """No rank goes on: those that can still hear INT may save their work, and none gets the time of a training one."""
    return (Step("INT", 2.0), Step("TERM", 2.0), Step("KILL", 1.0))


def at_once() -> tuple[Step, ...]:
    """KILL now."""
    return (Step("KILL", 1.0),)


class Stopper:
    """Goes through the steps; KILL is repeated until nobody is left."""

    def __init__(self, steps: tuple[Step, ...], send: Callable[[str], None]) -> None:
        self._steps = list(steps)
        self._send = send
        self._next_at = time.monotonic()
        self._killed_at = math.inf

    @property
    def killing(self) -> float:
        """Seconds since the first KILL, below zero before it."""
        return time.monotonic() - self._killed_at

    def hurry(self) -> None:
        """Go to KILL at the next tick."""
        self._steps = list(at_once())
        self._next_at = time.monotonic()

    def tick(self) -> Sent | None:
        """Carry out the next step when its time has come and return it."""
        now = time.monotonic()
        if now < self._next_at:
            return None
        step = self._steps[0]
        if len(self._steps) > 1:
            self._steps.pop(0)
        if step.signal:
            self._send(step.signal)
        if step.signal == "KILL":
            self._killed_at = min(self._killed_at, now)
        self._next_at = now + step.grace
        return self._describe(step)

    def _describe(self, done: Step) -> Sent:
        if done.signal == "KILL":
            return Sent("KILL", "", None, None)
        before_kill = sum(step.grace for step in self._steps if step.signal != "KILL")
        return Sent(done.signal, self._steps[0].signal, done.grace, done.grace + before_kill)

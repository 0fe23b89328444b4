"""Stops a job's processes: INT, then TERM, then KILL, with visible grace periods.

``Stopper`` is a state machine that is polled every tick; ``UnkillableProcesses`` tracks processes in state D. Both
depend only on the clock and the remaining processes, not on events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from distdl_jupyter.clusters.base import Run, UnkillableProcess

#: Seconds after KILL before surviving processes are examined.
_EXAMINE_SECONDS = 5.0
#: Seconds between two polls of the process table while processes survive KILL.
POLL_SECONDS = 1.0


class StopStep(NamedTuple):
    """Send ``signal`` ("" sends nothing) and then wait ``grace`` seconds."""

    signal: str
    grace: float


def build_gentle_steps(grace: float) -> tuple[StopStep, ...]:
    """Return the steps of a requested stop: training code may save its work after INT."""
    return (StopStep("INT", grace), StopStep("TERM", 2 * grace), StopStep("KILL", 1.0))


#: After a failed rank: the others may report their errors, but must exit within 5 s.
AFTER_FAILURE_STEPS = (StopStep("", 1.0), StopStep("TERM", 1.5), StopStep("KILL", 1.0))
#: After a hang: ranks that still handle INT may save their work, with less time than after a request.
AFTER_HANG_STEPS = (StopStep("INT", 2.0), StopStep("TERM", 2.0), StopStep("KILL", 1.0))
#: An immediate stop.
IMMEDIATE_STEPS = (StopStep("KILL", 1.0),)
#: For processes that the ranks left behind.
LEFTOVER_STEPS = (StopStep("TERM", 1.0), StopStep("KILL", 1.0))


class Stopper:
    """Executes the steps; KILL is repeated until no process is left."""

    def __init__(self, steps: tuple[StopStep, ...], send: Callable[[str], None]) -> None:
        self._steps = list(steps)
        self._send = send
        self._next_at = time.monotonic()
        self._killed_at = math.inf

    @property
    def seconds_since_kill(self) -> float:
        """Seconds since the first KILL; negative infinity before it."""
        return time.monotonic() - self._killed_at

    def escalate(self) -> None:
        """Escalate to KILL at the next tick."""
        self._steps = list(IMMEDIATE_STEPS)
        self._next_at = time.monotonic()

    def tick(self) -> dict[str, Any] | None:
        """Execute the next step if it is due, and return the fields of its event (see core.events)."""
        now = time.monotonic()
        if now < self._next_at:
            return None
        step = self._steps[0]
        if len(self._steps) > 1:
            self._steps.pop(0)
        if step.signal:
            self._send(step.signal)
        self._next_at = now + step.grace
        if step.signal == "KILL":
            self._killed_at = min(self._killed_at, now)
            return {"signal": "KILL", "next": "", "next_in": None, "kill_in": None}
        kill_in = step.grace + sum(later.grace for later in self._steps if later.signal != "KILL")
        return {"signal": step.signal, "next": self._steps[0].signal, "next_in": step.grace, "kill_in": kill_in}


class UnkillableProcesses:
    """The processes of a run that are blocked in the kernel (state D), where KILL has no effect."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stuck: set[UnkillableProcess] = set()
        #: Processes that seemed stuck at the last poll, and when the next poll is due.
        self._suspects: set[UnkillableProcess] = set()
        self._next_poll = 0.0

    def __len__(self) -> int:
        return len(self._stuck)

    def find_new(self, stopper: Stopper) -> list[UnkillableProcess]:
        """Return the processes that have newly survived KILL for some time; they may never exit."""
        if stopper.seconds_since_kill < _EXAMINE_SECONDS or time.monotonic() < self._next_poll:
            return []
        self._next_poll = time.monotonic() + POLL_SECONDS
        current = set(self._run.list_unkillable())
        # A process that reads from a disk is also in that state for a short time.
        new = sorted(current & self._suspects - self._stuck)
        self._stuck.update(new)
        self._suspects = current
        return new

    def count_killable(self) -> int:
        """Return the number of live processes of the job that can be killed."""
        alive = len(self._run.list_alive())
        return alive - len(self._stuck.intersection(self._run.list_unkillable())) if alive and self._stuck else alive

"""The time that stands in a job's log: that of the clock on the wall, but never going back.

Somebody who sets the clock back must not make a job end before it began. From such a moment on the time goes on as the
monotonic clock does. A clock that is set forward is followed: a machine that slept looks the same.
"""

from __future__ import annotations

import time

#: Seconds by which the two clocks may drift apart between two looks before the clock counts as set back.
_DRIFT = 0.02
#: Seconds by which a clock that was set back must jump ahead to count as corrected.
_CORRECTED = 1.0


class Clock:
    """Gives epoch seconds. ``after`` is a moment that has passed already, 0 for none."""

    def __init__(self, after: float = 0.0) -> None:
        self._ahead = 0.0
        self._last = after
        self._ticks = time.monotonic()

    def now(self) -> float:
        """Return the moment of now, rounded to a tenth of a millisecond."""
        ticks, wall = time.monotonic(), time.time() + self._ahead
        due = self._last + max(0.0, ticks - self._ticks)
        if wall < due - _DRIFT:
            self._ahead, wall = self._ahead + due - wall, due
        elif self._ahead > 0 and wall > due + _CORRECTED:
            # Somebody has put it right again.
            self._ahead, wall = max(0.0, self._ahead - (wall - due)), max(due, wall - self._ahead)
        self._last, self._ticks = max(wall, self._last), ticks
        return round(self._last, 4)

"""The processes of an elastic job, which the job's agents start and end as they are ordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.backends.elastic.words import Words

#: Seconds between TERM and KILL.
_GRACE = 2.0


class Workers:
    """At most one process for each rank of the job.

    ``ends`` returns (rank, pid, exit code or negative signal) of those that ended since its last call.
    """

    def __init__(self, words: Words, ends: Callable[[], list[tuple[int, int, int]]]) -> None:
        self._words = words
        self._ends = ends
        self._kill_at: dict[int, float] = {}

    def start(self, number: int, more: Mapping[str, str]) -> None:
        """Have the process of a rank started with ``more`` in its environment."""
        self._words.order("start", rank=number, environment=dict(more))

    def ended(self) -> list[tuple[int, int, int]]:
        """Return (rank, pid, exit code or negative signal) of those that ended since the last call."""
        found = self._ends()
        for number, *_ in found:
            self._kill_at.pop(number, None)
        return found

    def end(self, number: int) -> None:
        """Ask the process of a rank to end; ``press`` makes sure of it."""
        if number not in self._kill_at:
            self._kill_at[number] = time.monotonic() + _GRACE
            self._words.order("signal", rank=number, name="TERM")

    def press(self) -> None:
        """Kill those that were asked to end and have not."""
        for number, due in self._kill_at.items():
            if time.monotonic() > due:
                self._words.order("signal", rank=number, name="KILL")

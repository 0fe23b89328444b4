"""Decides which reports of metrics and progress become events, to limit a job to a few thousand events a day and rank.

Of a rank's progress reports in quick succession, only the last one becomes an event. After ``_MAX_UNTHINNED`` metric
reports of a job, the same applies to reports of the same metrics. The event counts the omitted ones in ``reports``. The
first report of a rank whose values are not finite is not omitted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from distdl_jupyter.core.events import Event

#: Minimum pause in seconds between two events of a rank.
_MIN_PAUSE_SECONDS = 0.1
#: The pause as a fraction of the run time so far.
_PAUSE_SHARE = 0.001
#: Maximum pause in seconds.
_MAX_PAUSE_SECONDS = 10.0
#: Number of metric reports of a job that all become events.
_MAX_UNTHINNED = 100_000

#: Position of a report in a stored stream.
Origin = dict[str, int]
#: Type, fields and origin of an event to write.
PendingEvent = tuple[str, dict[str, Any], Origin]


class ReportThinner:
    """Holds reports back until they are due, or until a later report replaces them."""

    def __init__(self) -> None:
        self._metric_count = 0
        #: The last report of each type and rank that has not become an event.
        self._pending_reports: dict[tuple[str, int], PendingEvent] = {}
        #: The time of the last event of each type and rank, or for "problem", of the last one with values like NaN.
        self._written_at: dict[tuple[str, int], float] = {}
        #: The values of each rank's last metric report that are not finite, as text.
        self._non_finite: dict[int, dict[str, str]] = {}
        self._started_at = time.monotonic()

    def count(self, event: Event) -> None:
        """Count the metric reports of an event."""
        if event["type"] == "metric":
            self._metric_count += event.get("reports", 1)

    def add_metric(
        self, rank: int, step: float, values: Mapping[str, float], origin: Origin, *, replace: bool
    ) -> list[PendingEvent]:
        """Add a metric report; with ``replace`` it replaces earlier ones. Return the events to write now."""
        fields: dict[str, Any] = {"rank": rank, "step": step, "values": values}
        if replace:
            fields["replace"] = True
        flushed: list[PendingEvent] = []
        if (pending := self._pending_reports.get(("metric", rank))) is not None:
            if replace or step < pending[1]["step"] or values.keys() != pending[1]["values"].keys():
                flushed = self._take([("metric", rank)])
            else:
                fields["reports"] = pending[1].get("reports", 1) + 1
        self._pending_reports["metric", rank] = ("metric", fields, origin)
        is_due = replace or self._metric_count < _MAX_UNTHINNED or self._is_due(("metric", rank))
        non_finite = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
        if non_finite and non_finite != self._non_finite.get(rank) and self._is_due(("problem", rank)):
            is_due, self._written_at["problem", rank] = True, time.monotonic()
        self._non_finite[rank] = non_finite
        return [*flushed, *(self._take([("metric", rank)]) if is_due else ())]

    def add_progress(self, rank: int, data: dict[str, Any], origin: Origin, *, now: bool = False) -> list[PendingEvent]:
        """Add a progress report, which replaces the previous one. Return the events to write now."""
        self._pending_reports["progress", rank] = ("progress", {"rank": rank, **data}, origin)
        return self._take([("progress", rank)]) if now or self._is_due(("progress", rank)) else []

    def take_due(self) -> list[PendingEvent]:
        """Remove and return the held-back events that are due."""
        return self._take([*filter(self._is_due, self._pending_reports)])

    def take_all(self, *, only_metrics: bool = False) -> list[PendingEvent]:
        """Remove and return all held-back events; with ``only_metrics``, only the metric events."""
        return self._take([key for key in self._pending_reports if key[0] == "metric" or not only_metrics])

    def _is_due(self, key: tuple[str, int]) -> bool:
        now = time.monotonic()
        pause = min(max(_MIN_PAUSE_SECONDS, (now - self._started_at) * _PAUSE_SHARE), _MAX_PAUSE_SECONDS)
        return now - self._written_at.get(key, -math.inf) >= pause

    def _take(self, keys: list[tuple[str, int]]) -> list[PendingEvent]:
        self._written_at |= dict.fromkeys(keys, time.monotonic())
        return [self._pending_reports.pop(key) for key in keys]

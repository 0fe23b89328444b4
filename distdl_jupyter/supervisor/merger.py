"""Decides which reports of metrics and progress become events.

Only the last of several progress reports in quick succession becomes an event. The first ``_MAX_UNMERGED`` metric
reports of a job are written immediately. After that, reports of one rank that fall into the same bucket of the curves
(core.series) are merged into one event, written when the rank reports in another bucket or after
``_MAX_DELAY_SECONDS``. This limits a job to a few thousand events per day and rank.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Mapping
from typing import Any

from distdl_jupyter.core import series
from distdl_jupyter.core.events import Event, encode_number
from distdl_jupyter.core.series import SeriesBook

#: Pause between two progress events of a rank: minimum seconds, fraction of the run time so far, and maximum seconds.
_MIN_PAUSE_SECONDS, _PAUSE_SHARE, _MAX_PAUSE_SECONDS = 0.1, 0.001, 10.0
#: Number of metric reports of a job that are written immediately.
_MAX_UNMERGED = 100_000
#: Maximum number of buckets of all series (56 bytes each). Beyond it, the curves are dropped and merging ends.
_MAX_BUCKETS = 500_000
#: Maximum seconds that metric reports are held back.
_MAX_DELAY_SECONDS = 30.0

#: Position of a report in a stored stream.
Origin = dict[str, int]
#: Type, fields and origin of an event to write.
PendingEvent = tuple[str, dict[str, Any], Origin]


class ReportMerger:
    """Holds reports back until they are due. It receives every event of the job, to follow the curves."""

    def __init__(self) -> None:
        self._report_count = 0
        #: The curves, from the first metric on; dropped when they have too many buckets.
        self._book: SeriesBook | None = None
        self._has_dropped_curves = False
        self._metrics: dict[int, _MergedMetrics] = {}
        self._progress: dict[int, tuple[dict[str, Any], Origin]] = {}
        self._progress_at: dict[int, float] = {}
        self._started_at = time.monotonic()

    def apply(self, event: Event) -> None:
        """Fold one event into the curves."""
        if event["type"] == "metric":
            self._report_count += event.get("reports", 1)
            if self._book is None and not self._has_dropped_curves:
                self._book = SeriesBook()
        if self._book is not None:
            self._book.apply(event)

    def add_metric(
        self, rank: int, step: float, values: Mapping[str, float], origin: Origin, *, replace: bool
    ) -> list[PendingEvent]:
        """Add a metric report; with ``replace`` it replaces earlier ones. Return the events to write now."""
        merged = self._metrics.get(rank)
        book = self._book if self._report_count >= _MAX_UNMERGED and not replace else None
        is_mergeable = book is not None and book.can_merge(rank, step, values)
        if not is_mergeable or (merged is not None and not merged.accepts(step, values)):
            fields = {"rank": rank, "step": step, "values": values, **({"replace": True} if replace else {})}
            return [*(self._take_metrics(rank) if merged is not None else ()), ("metric", fields, origin)]
        if merged is None:
            merged = self._metrics[rank] = _MergedMetrics(values)
        merged.add(step, values, origin)
        return []

    def add_progress(self, rank: int, data: dict[str, Any], origin: Origin, *, now: bool = False) -> list[PendingEvent]:
        """Add a progress report, which replaces the previous one. Return the events to write now."""
        self._progress[rank] = (data, origin)
        return self._take_progress(rank) if now or self._is_progress_due(rank) else []

    def take_due(self) -> list[PendingEvent]:
        """Remove and return the held-back events that are due."""
        if self._book is not None and self._book.size > _MAX_BUCKETS:
            self._book, self._has_dropped_curves = None, True
        now = time.monotonic()
        metrics = [rank for rank, merged in self._metrics.items() if now >= merged.deadline]
        return [*self._take_progress(*filter(self._is_progress_due, self._progress)), *self._take_metrics(*metrics)]

    def take_all(self, *, only_metrics: bool = False) -> list[PendingEvent]:
        """Remove and return all held-back events; with ``only_metrics``, only the metric events."""
        progress = [] if only_metrics else self._take_progress(*self._progress)
        return [*progress, *self._take_metrics(*self._metrics)]

    def _is_progress_due(self, rank: int) -> bool:
        now = time.monotonic()
        pause = min(max(_MIN_PAUSE_SECONDS, (now - self._started_at) * _PAUSE_SHARE), _MAX_PAUSE_SECONDS)
        return now - self._progress_at.get(rank, -math.inf) >= pause

    def _take_progress(self, *ranks: int) -> list[PendingEvent]:
        self._progress_at |= dict.fromkeys(ranks, time.monotonic())
        reports = [(rank, *self._progress.pop(rank)) for rank in ranks]
        return [("progress", {"rank": rank, **fields}, origin) for rank, fields, origin in reports]

    def _take_metrics(self, *ranks: int) -> list[PendingEvent]:
        reports = [(rank, self._metrics.pop(rank)) for rank in ranks]
        return [("metric", {"rank": rank, **merged.build_fields()}, merged.origin) for rank, merged in reports]


class _MergedMetrics:
    """Reports of one rank that are merged into one event. ``origin`` is that of the last report."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.deadline = time.monotonic() + _MAX_DELAY_SECONDS
        self.origin: Origin = {}
        self._step, self._count = -math.inf, 0
        self._values = dict(values)
        #: One bucket for each metric, in the order of ``_values``.
        self._buckets: list[array[float]] = [series.create_bucket() for _ in values]

    def accepts(self, step: float, values: Mapping[str, float]) -> bool:
        """Return whether a report can be added: it has the same metrics and no earlier step."""
        return step >= self._step and values.keys() == self._values.keys()

    def add(self, step: float, values: Mapping[str, float], origin: Origin) -> None:
        self._step, self.origin, self._count = step, origin, self._count + 1
        self._values.update(values)
        for bucket, value in zip(self._buckets, self._values.values(), strict=True):
            series.add_value(bucket, step, value)

    def build_fields(self) -> dict[str, Any]:
        """Return the fields of the merged event (see core.events)."""
        fields = {"step": self._step, "values": self._values}
        if self._count == 1:
            return fields
        folded = [[*map(encode_number, bucket)] for bucket in self._buckets]
        return {**fields, "reports": self._count, "folded": folded}

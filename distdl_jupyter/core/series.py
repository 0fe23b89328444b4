"""The curves of a job: metric events folded into bounded series.

``SeriesBook().apply(event)`` for each event in order, about a microsecond a value; ``band(name)`` and ``lines(name)``
cost some milliseconds whatever the number of points. How points are kept is ``core.buckets``'s affair, how they are
read ``core.curves``'s, how a curve looks ``core.figure``'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from distdl_jupyter.core.buckets import Metric, Point, Series
from distdl_jupyter.core.curves import MAX_POINTS, Band, Line, band_of, lines_of
from distdl_jupyter.core.events import Event

#: Names of metrics beyond this many are not kept: a name made from the step would fill the memory.
MAX_METRICS = 500
#: Steps beyond this (and those that are not finite) have no place on an axis; nanoseconds of the epoch have.
MAX_STEP = 1e21


class SeriesBook:
    """All curves of a job, by the name of the metric."""

    def __init__(self, metrics: dict[str, Metric] | None = None) -> None:
        self._metrics: dict[str, Metric] = {} if metrics is None else metrics
        #: Names of the metrics that are read in what ranks print.
        self.output_metrics: set[str] = set()

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics in the order of their first report."""
        return self._metrics

    @property
    def size(self) -> int:
        """How many buckets all series of all metrics have."""
        return sum(len(metric.grid.slots) * len(metric.series) for metric in self._metrics.values())

    def apply(self, event: Event) -> None:
        """Fold one event in; other types than metric, metric_source and restart and what is malformed are ignored.

        After a restart, what ranks had reported of the first step that they report again, and of later ones, goes. So
        does what a rank had reported before it says that it reports steps ``again``, and what was read in the output
        when ranks report it themselves.
        """
        if event.get("type") != "metric":
            self._begin_anew(event)
            return
        try:
            rank, step, time = int(event["rank"]), float(event["step"]), float(event["t"])
            if not (abs(step) <= MAX_STEP and math.isfinite(time)):
                return
            folded = event.get("folded")
            for number, (name, value) in enumerate(event["values"].items()):
                metric = self._metrics.get(name) or self._new(name)
                if metric is None:
                    continue
                if event.get("again"):
                    metric.forget_from(rank, step)
                if folded is None:
                    metric.add(rank, step, float(value), time)
                else:
                    metric.add_folded(rank, int(event["reports"]), Point(step, time, float(value)), folded[number])
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
            return

    def _begin_anew(self, event: Event) -> None:
        if event.get("type") == "restart":
            for known in self._metrics.values():
                known.restart()
        elif event.get("type") == "metric_source" and event.get("from_output"):
            self.output_metrics.update(event.get("names") or ())
        elif event.get("type") == "metric_source":
            for name in event.get("names") or ():
                self.output_metrics.discard(name)
                self._metrics.pop(name, None)

    def extends(self, rank: int, step: float, names: Iterable[str]) -> bool:
        """Say whether a report of these metrics is one of several that a curve need not tell apart.

        Each of its points falls into the bucket of the rank's newest one, and not before it.
        """
        metrics = self._metrics
        return abs(step) <= MAX_STEP and all(name in metrics and metrics[name].extends(rank, step) for name in names)

    @property
    def names(self) -> list[str]:
        """Names of all metrics in the order of their first report."""
        return list(self._metrics)

    def count(self, name: str) -> int:
        """Return how many points of a metric came, over all ranks: a view redraws when this has changed."""
        metric = self._metrics.get(name)
        return metric.count if metric else 0

    def series(self, name: str, rank: int) -> Series | None:
        """Return the series of one rank, None when it reported nothing of that name."""
        metric = self._metrics.get(name)
        return metric.series.get(rank) if metric else None

    def band(self, name: str) -> Band:
        """Return the metric over all ranks; an unknown name gives an empty band."""
        return band_of(self._metrics.get(name) or Metric())

    def lines(self, name: str, most: int = MAX_POINTS) -> list[Line]:
        """Return the metric's line of each rank, at most ``most`` points each; an unknown name gives none."""
        return lines_of(self._metrics.get(name) or Metric(), most)

    def _new(self, name: str) -> Metric | None:
        if len(self._metrics) >= MAX_METRICS:
            return None
        metric = self._metrics[name] = Metric()
        return metric

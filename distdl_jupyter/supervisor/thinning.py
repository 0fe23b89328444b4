"""Reports of metrics that no curve can tell apart, held back until they are written as one.

The first reports of a job are written as they come. After that (``Ledger.metric``), what a rank reports in a bucket of
the curves (core.buckets) in which it has reported before waits until it reports in another one, or for ``_LONGEST``
seconds: then one event says all that a curve shows of it. So a job writes a few thousand events a day for each rank.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.buckets import Series
from distdl_jupyter.core.packing import number_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds for which reports are held back at most.
_LONGEST = 30.0


class Held:
    """Reports of one rank with the same metrics, each in one bucket. ``origin`` is that of the last one."""

    def __init__(self) -> None:
        self.step = 0.0
        self.values: Mapping[str, float] = {}
        self.origin: dict[str, int] = {}
        self._reports = 0
        self._series: list[Series] = []
        self._until = time.monotonic() + _LONGEST

    def takes(self, step: float, values: Mapping[str, float]) -> bool:
        """Say whether a report can go to these: it is not of an earlier step and has the same metrics."""
        return not self._reports or (step >= self.step and values.keys() == self.values.keys())

    def add(self, step: float, values: Mapping[str, float], origin: dict[str, int]) -> None:
        """Take one report."""
        self._series = self._series or [Series() for _ in values]
        for series, name in zip(self._series, self.values or values, strict=True):
            series.add(0, step, values[name], 0.0)
        # In the order of the first report's names, as the series are.
        self.values = {name: values[name] for name in self.values or values}
        self.step, self.origin, self._reports = step, origin, self._reports + 1

    @property
    def is_due(self) -> bool:
        """Whether they were held back for long enough."""
        return time.monotonic() >= self._until

    def fields(self) -> dict[str, Any]:
        """Return the fields of the event that says it all (see core.events)."""
        values = {"step": self.step, "values": self.values}
        if self._reports == 1:
            return values
        folded = [[*map(number_to_json, one.folded)] for one in self._series]
        return {**values, "reports": self._reports, "folded": folded}

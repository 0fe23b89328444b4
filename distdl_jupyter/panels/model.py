"""What a job's panel shows, as plain traits: no widget, no browser, no thread of its own.

A feed reads on in its ``reading`` and lets it speak (``publish``); the widgets of ``panels.monitor`` mirror its traits
and set the few that a user can change.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import traitlets

from distdl_jupyter.core import humanize
from distdl_jupyter.views.card import card, notice_line
from distdl_jupyter.views.curve import summary, table
from distdl_jupyter.views.job_table import default_metric
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.readers import Reading

#: Seconds between two signs of life, and after which the time left is told anew.
_BEAT, _FRESH = 1.0, 3.0


class JobModel(traitlets.HasTraits):
    """One job on one panel.

    Lock-free: one thread reads on and calls ``publish``, others only set ``metric``, ``mode``, ``logarithmic``,
    ``dark`` and ``detached``.
    """

    card = traitlets.Dict()
    foot = traitlets.Dict()
    beat = traitlets.Float()
    problem = traitlets.Unicode()
    metrics: traitlets.List[dict[str, str]] = traitlets.List()
    #: The failing rank and how its last error line begins, for the log; empty while nothing failed.
    failed = traitlets.Dict()
    summary = traitlets.Unicode()
    table: traitlets.List[list[str]] = traitlets.List()

    metric = traitlets.Unicode()
    mode = traitlets.Enum(["band", "ranks"], "band")
    logarithmic = traitlets.Bool(default_value=False)
    dark = traitlets.Bool(default_value=False)
    detached = traitlets.Bool(default_value=False)

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.reading = reading
        self.publish(time.time())

    @property
    def view(self) -> JobView:
        """All that is small of the job."""
        return self.reading.view

    @property
    def book(self) -> SeriesBook:
        """Its curves."""
        return self.reading.book

    def publish(self, now: float) -> None:
        """Set the traits to what is known now (epoch seconds)."""
        view = self.view
        with self.hold_trait_notifications():
            self.foot = to_json(notice_line(view))
            self.metrics = [{"name": name, "value": humanize.number(m.mean)} for name, m in view.metrics.items()]
            if not self.metric and view.metrics:
                self.metric = default_metric(list(view.metrics))
            self._say(to_json(card(view, now, has_checkpoints=self.reading.has_checkpoints)))
            failure = self.card["failure"]
            self.failed = _first_line(failure) if failure else {}
            if now - self.beat >= _BEAT:
                self.beat = now

    def _say(self, new: dict[str, Any]) -> None:
        """Take a card over when more than the time has changed in it; the page counts seconds by itself."""
        told = {**self.card, "now": new["now"], "left": new["left"]}
        if new != told or new["now"] - self.card["now"] >= _FRESH:
            self.card = new

    def describe(self) -> None:
        """Say the curve in words and as a table of a few rows, for those who cannot see it."""
        band = self.book.band(self.metric)
        with self.hold_trait_notifications():
            self.summary = summary(self.metric, band)
            self.table = table(band)


def _first_line(failure: dict[str, Any]) -> dict[str, Any]:
    return {"rank": failure["rank"], "text": failure["error_type"]}

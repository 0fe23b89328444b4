"""What a job's panel shows, as plain traits: no widget, no browser, no thread of its own.

A feed gives it events (``take``) and lets it speak (``publish``); the widgets of ``panels.monitor`` mirror its traits
and set the few that a user can change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import traitlets

from distdl_jupyter.core import words
from distdl_jupyter.core.curves import Band, Row
from distdl_jupyter.core.events import Event
from distdl_jupyter.core.log import LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.view import JobView
from distdl_jupyter.panels.card import card, foot

#: Rows of the curve's table view.
_TABLE_ROWS = 24
#: Seconds between two signs of life, and after which the time left is told anew.
_BEAT, _FRESH = 1.0, 3.0


class JobModel(traitlets.HasTraits):
    """One job on one panel.

    ``view`` is folded by whoever reads the events; the model folds curves and log. Lock-free: one thread calls ``take``
    and ``publish``, others only set ``metric``, ``mode``, ``logarithmic``, ``dark`` and ``detached``.
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

    def __init__(self, view: JobView, *, can_rerun: bool = False) -> None:
        super().__init__()
        self.view = view
        self.book = SeriesBook()
        self.lines = LogBook(view.process_count)
        self.can_rerun = can_rerun
        self.publish(time.time())

    def take(self, events: Sequence[Event]) -> None:
        """Fold events into the curves and the log."""
        for event in events:
            if event["type"] == "metric":
                self.book.apply(event)
            elif event["type"] == "log":
                self.lines.apply(event)

    def publish(self, now: float) -> None:
        """Set the traits to what is known now (epoch seconds)."""
        view = self.view
        with self.hold_trait_notifications():
            self.foot = foot(view)
            self.metrics = [{"name": name, "value": words.number(m.mean)} for name, m in view.metrics.items()]
            if not self.metric and view.metrics:
                self.metric = favourite(list(view.metrics))
            self._say(card(view, now, can_rerun=self.can_rerun))
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


def favourite(names: Sequence[str]) -> str:
    """Return the metric to show first: the loss, else the first one reported."""
    return next((name for name in names if "loss" in name.lower()), names[0])


def _first_line(failure: dict[str, Any]) -> dict[str, Any]:
    return {"rank": failure["rank"], "text": failure["error_type"]}


def summary(metric: str, band: Band) -> str:
    """Return a curve as one sentence: first, last and extent."""
    rows = [row for row in band.rows if row.mean is not None]
    if not rows:
        return f"Curve of {metric}: no values yet"
    first, last = rows[0], rows[-1]
    low = min(row.low for row in rows if row.low is not None)
    high = max(row.high for row in rows if row.high is not None)
    return (
        f"Curve of {metric} over {words.plural(last.step - first.step, 'step')}: from {_number(first.mean)} to "
        f"{_number(last.mean)}, lowest {words.number(low)}, highest {words.number(high)}"
    )


def table(band: Band) -> list[list[str]]:
    """Return at most ``_TABLE_ROWS`` rows spread over the curve: step, mean, lowest (rank), highest (rank)."""
    rows = band.rows
    if len(rows) > _TABLE_ROWS:
        rows = [rows[round(at * (len(rows) - 1) / (_TABLE_ROWS - 1))] for at in range(_TABLE_ROWS)]
    return [_table_row(row) for row in reversed(rows)]


def _table_row(row: Row) -> list[str]:
    return [
        words.count(row.step),
        _number(row.mean),
        _with_rank(row.low, row.low_rank),
        _with_rank(row.high, row.high_rank),
    ]


def _number(value: float | None) -> str:
    return words.number(value) if value is not None and math.isfinite(value) else "not a number"


def _with_rank(value: float | None, rank: int | None) -> str:
    return "" if value is None else f"{words.number(value)} ({rank})"

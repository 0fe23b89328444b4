"""The checkpoints of a job, as text, as HTML that a saved notebook keeps, and as rows for a page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.checkpoints import Checkpoint
from distdl_jupyter.views import table
from distdl_jupyter.views.schema import CheckpointMetric, CheckpointRow
from distdl_jupyter.views.wire import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Metrics of which a table has a column.
_COLUMNS = 6
_NONE = "No checkpoints. Checkpoints that the training code saves in distdl_jupyter.checkpoint_dir() are listed here."


class CheckpointList(list[Checkpoint]):
    """Checkpoints, the newest first, that show themselves as a table."""

    def __str__(self) -> str:
        return table.text(_rows(self)) if self else _NONE

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return table.html(_rows(self)) if self else f"<p>{escape(_NONE)}</p>"


def metric_names(known: Iterable[Checkpoint]) -> list[str]:
    """Return the metrics that some of them have, in the order in which they were reported first."""
    return list(dict.fromkeys(name for one in known for name in one.metrics))


def _rows(known: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    names = metric_names(known)[:_COLUMNS]
    head = ("step", *names, "size", "files", "written", "checkpoint")
    return [head, *(_row(one, names) for one in known)]


def _row(one: Checkpoint, names: Sequence[str]) -> tuple[str, ...]:
    values = [humanize.number(one.metrics[name]) if name in one.metrics else "" for name in names]
    files = humanize.count(one.files) if one.files > 1 else ""
    return (step_text(one), *values, humanize.size(one.size), files, humanize.date_and_clock(one.modified), one.path)


def step_text(one: Checkpoint) -> str:
    """Return the step, with "about" where it is known by the time of writing only."""
    if one.step is None:
        return ""
    return humanize.count(one.step) if one.is_named else f"about {humanize.count(one.step)}"


def rows(known: Iterable[Checkpoint]) -> tuple[CheckpointRow, ...]:
    """Return them for a page."""
    return tuple(
        CheckpointRow(
            path=one.path,
            step=one.step,
            is_named=one.is_named,
            metrics=tuple(
                CheckpointMetric(name, humanize.number(value), finite(value)) for name, value in one.metrics.items()
            ),
            size=one.size,
            files=one.files,
            modified=one.modified,
            load=one.load_code,
        )
        for one in known
    )

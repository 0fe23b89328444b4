"""The checkpoints of a job as a table for notebooks and terminals, and as rows for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize, table
from distdl_jupyter.core.checkpoints import Checkpoint
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Maximum number of metric columns.
_COLUMNS = 6
_NONE = "No checkpoints. Checkpoints that the training code saves in distdl_jupyter.checkpoint_dir() are listed here."


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint: ``size`` in bytes, ``modified`` in epoch seconds, ``load`` is Python code that loads it.

    ``step`` is None if it is unknown; ``is_named`` says that the file name contains it. A metric that is not finite is
    None.
    """

    path: str
    step: float | None
    is_named: bool
    metrics: dict[str, float | None]
    size: int
    files: int
    modified: float
    load: str


class CheckpointList(table.Display, list[Checkpoint]):
    """Checkpoints, newest first, displayed as a table."""

    def _parts(self) -> list[str | table.Rows]:
        return [_rows(self) if self else _NONE]


def metric_names(known: Iterable[Checkpoint]) -> list[str]:
    """Return the names of all metrics of the checkpoints, in the order of their first report."""
    return list(dict.fromkeys(name for checkpoint in known for name in checkpoint.metrics))


def _rows(known: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    names = metric_names(known)[:_COLUMNS]
    rows = [
        (
            _step_text(checkpoint),
            *(humanize.number(checkpoint.metrics[name]) if name in checkpoint.metrics else "" for name in names),
            humanize.size(checkpoint.size),
            humanize.count(checkpoint.files) if checkpoint.files > 1 else "",
            humanize.date_and_clock(checkpoint.modified),
            checkpoint.path,
        )
        for checkpoint in known
    ]
    return [("step", *names, "size", "files", "written", "checkpoint"), *rows]


def _step_text(checkpoint: Checkpoint) -> str:
    """Return the step, with "about" if it is only known from the time of writing."""
    if checkpoint.step is None:
        return ""
    return humanize.count(checkpoint.step) if checkpoint.is_named else f"about {humanize.count(checkpoint.step)}"


def rows(known: Iterable[Checkpoint]) -> tuple[CheckpointRow, ...]:
    """Return the checkpoints for a page."""
    return tuple(from_fields(CheckpointRow, checkpoint, load=checkpoint.load_code) for checkpoint in known)

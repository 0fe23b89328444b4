"""How far a check is and what it has found, for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core.correctness import Comparison, Difference


@dataclass(frozen=True, slots=True)
class JobCheck:
    """A check of training code: ``state`` says which of its runs lasts, or that it ``failed`` for a ``reason``.

    ``summary`` and ``notes`` are sentences: what came of it, what was compared and what was not. ``single`` is the id
    of the run on one process, "" before it begins.
    """

    state: Literal["several", "one", "failed", "done"]
    reason: str
    summary: str
    findings: tuple[Difference, ...]
    notes: tuple[str, ...]
    single: str


def job_check(
    state: Literal["several", "one", "failed", "done"],
    comparison: Comparison,
    *,
    reason: str = "",
    single: str = "",
) -> JobCheck:
    """Return a check for a page: its ``state`` and the ``comparison`` so far.

    A check is "several" or "one" while its runs last, "failed" for a ``reason``, or "done"; ``single`` is the id of the
    run on one process, "" before it begins.
    """
    is_done = state == "done"
    summary, notes = (comparison.summary, tuple(comparison.notes)) if is_done else (_MEANWHILE[state], ())
    return JobCheck(state, reason, summary, tuple(comparison.findings), notes, single)


_MEANWHILE = {
    "several": "Running the first steps on several ranks.",
    "one": "Running the same steps in one process, with the samples of all ranks.",
    "failed": "The training failed before its first step.",
}

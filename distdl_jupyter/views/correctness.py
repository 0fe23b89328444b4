"""What a check has found, as text and as HTML that a saved notebook keeps."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Literal

from distdl_jupyter.core.correctness import Comparison, Difference
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.table import sentence_html

_SIGNS = {"error": "\N{BALLOT X}", "warning": "\N{WARNING SIGN}", "info": "\N{INFORMATION SOURCE}"}


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


class ComparisonShown(Comparison):
    """A comparison as a notebook shows it: ``print``, display, ``findings``."""

    __slots__ = ("job_id",)

    job_id: str

    def __str__(self) -> str:
        lines = [self.summary]
        for finding in self.findings:
            lines += ["", f"{finding.level.capitalize()}: {finding.text}"]
            lines += [f"  {finding.place}"] * bool(finding.place)
            lines += [f"  {finding.remedy}"] * bool(finding.remedy)
            lines += [f"    {line}" for line in finding.example.splitlines()]
        return "\n".join([*lines, *[""] * bool(self.findings), *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            [
                f"<p><b>{sentence_html(self.summary)}</b></p>",
                *map(self._html, range(len(self.findings))),
                *(f"<p>{sentence_html(note)}</p>" for note in self.notes),
            ]
        )

    def _html(self, at: int) -> str:
        finding = self.findings[at]
        example = f"<pre style='margin:4px 0 0 1.5em'>{escape(finding.example)}</pre>" if finding.example else ""
        location = f" <i>{escape(finding.place)}</i>:" if finding.place else ""
        text = f"{sentence_html(finding.text)} {sentence_html(finding.remedy)}"
        return f"<div style='margin:6px 0'>{_SIGNS[finding.level]}{location} {text}{example}</div>"

    @property
    def summary(self) -> str:
        """One sentence about everything."""
        if not self.steps:
            return "Nothing could be compared."
        where = f"in {plural(self.steps, 'step')} of {plural(self.processes, 'rank')}"
        wrong = [finding for finding in self.findings if finding.level != "info"]
        return f"{plural(len(wrong), 'mistake')} found {where}." if wrong else f"No mistake found {where}."

    @property
    def notes(self) -> list[str]:
        """Sentences that say what was compared, and what was not."""
        sentences = [f"Compared: {'; '.join(self.compared)}."] if self.compared else []
        return [*sentences, *self.left_out]


def job_check(
    state: Literal["several", "one", "failed", "done"],
    comparison: ComparisonShown,
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


def displayable(comparison: Comparison, job_id: str = "") -> ComparisonShown:
    """Return the same as a notebook shows it."""
    shown = ComparisonShown(
        comparison.processes, comparison.steps, comparison.findings, comparison.compared, comparison.left_out
    )
    shown.job_id = job_id
    return shown

"""What a check has found, as text and as HTML that a saved notebook keeps."""

from __future__ import annotations

from html import escape
from typing import Literal, Protocol

from distdl_jupyter.core.correctness import Comparison
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.views.schema import JobCheck
from distdl_jupyter.views.table import sentence_html

_SIGNS = {"error": "\N{BALLOT X}", "warning": "\N{WARNING SIGN}", "info": "\N{INFORMATION SOURCE}"}


class ComparisonShown(Comparison):
    """A comparison as a notebook shows it: ``print``, display, ``findings``."""

    __slots__ = ("job_id",)

    job_id: str

    def __str__(self) -> str:
        lines = [self.summary]
        for one in self.findings:
            lines += ["", f"{one.level.capitalize()}: {one.text}"]
            lines += [f"  {one.place}"] * bool(one.place)
            lines += [f"  {one.remedy}"] * bool(one.remedy)
            lines += [f"    {line}" for line in one.example.splitlines()]
        return "\n".join([*lines, *[""] * bool(self.findings), *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join([f"<p><b>{sentence_html(self.summary)}</b></p>", *map(self._html, range(len(self.findings))),
                        *(f"<p>{sentence_html(one)}</p>" for one in self.notes)])  # fmt: skip

    def _html(self, at: int) -> str:
        one = self.findings[at]
        example = f"<pre style='margin:4px 0 0 1.5em'>{escape(one.example)}</pre>" if one.example else ""
        place = f" <i>{escape(one.place)}</i>:" if one.place else ""
        text = f"{sentence_html(one.text)} {sentence_html(one.remedy)}"
        return f"<div style='margin:6px 0'>{_SIGNS[one.level]}{place} {text}{example}</div>"

    @property
    def summary(self) -> str:
        """One sentence about everything."""
        if not self.steps:
            return "Nothing could be compared."
        where = f"in {plural(self.steps, 'step')} of {plural(self.processes, 'rank')}"
        wrong = [one for one in self.findings if one.level != "info"]
        return f"{plural(len(wrong), 'mistake')} found {where}." if wrong else f"No mistake found {where}."

    @property
    def notes(self) -> list[str]:
        """Sentences that say what was compared, and what was not."""
        said = [f"Compared: {'; '.join(self.compared)}."] if self.compared else []
        return [*said, *self.left_out]


def job_check(standing: Standing) -> JobCheck:
    """Return a check for a page."""
    found = standing.found
    if standing.state == "done":
        summary, notes = found.summary, tuple(found.notes)
    else:
        summary, notes = _MEANWHILE[standing.state], ()
    return JobCheck(standing.state, standing.reason, summary, tuple(found.findings), notes, standing.single)


_MEANWHILE = {
    "several": "Running the first steps on several ranks.",
    "one": "Running the same steps in one process, with the samples of all ranks.",
    "failed": "The training failed before its first step.",
}


class Standing(Protocol):
    """How far a check is (``correctness.Standing``)."""

    @property
    def state(self) -> Literal["several", "one", "failed", "done"]:
        """Which of its runs lasts."""
        ...

    @property
    def reason(self) -> str:
        """Why it failed."""
        ...

    @property
    def found(self) -> ComparisonShown:
        """What was found so far."""
        ...

    @property
    def single(self) -> str:
        """The id of the run on one process."""
        ...


def displayable(found: Comparison, job_id: str = "") -> ComparisonShown:
    """Return the same as a notebook shows it."""
    shown = ComparisonShown(found.processes, found.steps, found.findings, found.compared, found.left_out)
    shown.job_id = job_id
    return shown

"""The seven steps of a job with a bar for each step's time, as one page and one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.printable import printable
from distdl_jupyter.saved.pages import PAPER, page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.views.job_page import Step, StepState

#: Shape, colour and word of each state.
_LOOKS: dict[StepState, tuple[str, str, str]] = {
    "done": ("tick", PAPER.ok, "done"),
    "now": ("arc", PAPER.brand, "now"),
    "next": ("dashed-ring", PAPER.dim, "to come"),
    "unused": ("slashed-ring", PAPER.dim, "not used"),
    "failed": ("cross", PAPER.err, "failed"),
    "stopped": ("slashed-ring", PAPER.ink, "stopped"),
}


def text(view: JobView, steps: Sequence[Step]) -> str:
    """Return the steps as lines of text."""
    rows = [(f"{step.number}", step.title, _LOOKS[step.state][2], _took(step), step.detail) for step in steps]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    head = f"{view.name} {view.id}: {humanize.STATE_WORDS[view.state]}"
    lines = ["  ".join([*(row[at].ljust(widths[at]) for at in range(4)), row[4]]) for row in rows]
    return "\n".join(printable(line, 300).rstrip() for line in (head, *lines))


def html(view: JobView, steps: Sequence[Step]) -> str:
    """Return the steps as a page's part that stands alone."""
    origin = min((step.begun for step in steps if step.begun is not None), default=view.created)
    whole = max([(step.begun or origin) - origin + (step.seconds or 0.0) for step in steps] + [0.001])
    rows = []
    for step in steps:
        shape, colour, word = _LOOKS[step.state]
        rows.append({"step": step, "shape": shape, "colour": colour, "word": word, "took": _took(step),
                     "bar": _bar(step, origin, whole)})  # fmt: skip
    return page("timeline.html", PAPER, view=view, rows=rows)


def _bar(step: Step, origin: float, whole: float) -> tuple[float, float] | None:
    """Return when the step was, within the time of the whole job: its begin and its length in percent."""
    if step.begun is None or step.seconds is None:
        return None
    return min(100 * (step.begun - origin) / whole, 99.0), 100 * step.seconds / whole


def _took(step: Step) -> str:
    return "" if step.seconds is None else humanize.seconds_taken(step.seconds)

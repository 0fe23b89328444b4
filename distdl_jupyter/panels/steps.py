"""The seven steps of a job as a panel: a table with a bar for each step's time, in a notebook and in its saved page.

It is plain HTML without a script, written anew while the job lives, so that the last state stays in the notebook.
Everything that comes from a job is escaped.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.printable import printable
from distdl_jupyter.follow import SummaryReader
from distdl_jupyter.panels.markup import (
    BORDER,
    BORDER_2,
    BRAND,
    ERR,
    INK,
    INK_2,
    MONO,
    OK,
    SANS,
    SURFACE,
    Html,
    div,
    el,
    join,
    mono,
    span,
    text,
)
from distdl_jupyter.panels.snapshot_parts import pill, shape
from distdl_jupyter.views.job_page import Step, StepState, job_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.client import Job
    from distdl_jupyter.core.view import JobView

#: Seconds between two writings.
_PACE = 0.5
#: Shape, colour and word of each state.
_LOOKS: dict[StepState, tuple[str, str, str]] = {
    "done": ("tick", OK, "done"),
    "now": ("arc", BRAND, "now"),
    "next": ("dashed-ring", INK_2, "to come"),
    "unused": ("slashed-ring", INK_2, "not used"),
    "failed": ("cross", ERR, "failed"),
    "stopped": ("slashed-ring", INK, "stopped"),
}
_CELL = f"padding:4px 12px 4px 0;border:0;border-bottom:1px solid {BORDER_2};background:{SURFACE};vertical-align:top"
_LINE = f"{_CELL};white-space:nowrap;text-align:left"


class Timeline:
    """The steps of one job. Shown in a notebook it follows the job to its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._display_id = uuid.uuid4().hex
        self._follower = SummaryReader(job.folder)
        self._reading = threading.Lock()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The seven steps now."""
        return self._now()[1]

    def _now(self) -> tuple[JobView, tuple[Step, ...]]:
        with self._reading:
            view = self._follower.catch_up()
            return view, job_steps(view, self._follower.spec, view.ended or max(time.time(), view.last_sign))

    def __repr__(self) -> str:
        return plain_text(*self._now())

    def _repr_html_(self) -> str:
        return html(*self._now())

    def _ipython_display_(self) -> None:
        self._write(update=False)
        if not self._follower.view.state.ended:
            # A program that executes the notebook heeds only what the running cell writes: one that waits does it.
            self._job.on_settled(lambda: self._write(update=True))
            threading.Thread(target=self._follow, name=f"distdl-timeline-{self._job.id}", daemon=True).start()

    def _follow(self) -> None:
        while not self._follower.view.state.ended:
            time.sleep(_PACE)
            self._write(update=True)

    def _write(self, *, update: bool) -> None:
        from IPython.display import publish_display_data

        publish_display_data(
            {"text/html": self._repr_html_(), "text/plain": repr(self)},  # type: ignore[no-untyped-call]
            transient={"display_id": self._display_id},
            update=update,
        )


def plain_text(view: JobView, steps: Sequence[Step]) -> str:
    """Return the steps as lines of text."""
    rows = [(f"{step.number}", step.title, _LOOKS[step.state][2], _took(step), step.detail) for step in steps]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    head = f"{view.name} {view.id}: {humanize.STATE_WORDS[view.state]}"
    lines = ["  ".join([*(row[at].ljust(widths[at]) for at in range(4)), row[4]]) for row in rows]
    return "\n".join(printable(line, 300).rstrip() for line in (head, *lines))


def html(view: JobView, steps: Sequence[Step]) -> Html:
    """Return the steps as a page's part that stands alone: no script, no style sheet, own colours."""
    begins = [step.begun for step in steps if step.begun is not None]
    origin = min(begins, default=view.created)
    whole = max([(step.begun or origin) - origin + (step.seconds or 0.0) for step in steps] + [0.001])
    head = div(
        f"display:flex;flex-wrap:wrap;align-items:center;gap:4px 8px;padding:8px 12px;border-bottom:1px solid {BORDER}",
        pill(view.state), span("font-size:15px;font-weight:600", text(view.name, 120)), mono(view.id, 60, INK_2),
    )  # fmt: skip
    rows = join(_row(step, origin, whole) for step in steps)
    # JupyterLab's own style would give every column the same width.
    look = f"border-collapse:collapse;table-layout:auto;width:100%;margin:0;font:12px/18px {SANS};color:{INK}"
    table = el("table", look, el("tbody", "", rows))
    style = (
        f"border:1px solid {BORDER};border-radius:2px;background:{SURFACE};color:{INK};color-scheme:light;"
        f"font:13px/18px {SANS};text-align:left;max-width:1100px;overflow-x:auto"
    )
    return div(style, head, div("padding:4px 0 4px 12px", table))


def _row(step: Step, origin: float, whole: float) -> Html:
    mark, ink, word = _LOOKS[step.state]
    weight = "600" if step.state in ("now", "failed") else "400"
    here = Html("") if not step.here else span(f"font:11px/18px {MONO};color:{INK_2}", text(f" {step.here}"))
    detail = span(f"color:{INK_2};overflow-wrap:anywhere", text(step.detail, 200))
    state = span(f"display:inline-flex;gap:6px;align-items:center;color:{ink}", shape(mark), Html(word))
    cells = [
        el(
            "td",
            f"{_CELL};white-space:nowrap;text-align:left;font-weight:{weight}",
            text(f"{step.number}  {step.title}"),
        ),
        el("td", f"{_CELL};white-space:nowrap;text-align:left", state),
        el("td", f"{_CELL};text-align:left;width:45%", detail, here),
        el("td", f"{_CELL};width:30%;vertical-align:middle", _bar(step, origin, whole, ink)),
        el("td", f"{_CELL};text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums", Html(_took(step))),
    ]
    return el("tr", f"background:{SURFACE}", *cells)


def _bar(step: Step, origin: float, whole: float, ink: str) -> Html:
    """Return when the step was, as a bar within the time of the whole job."""
    if step.begun is None or step.seconds is None:
        return Html("")
    left, width = 100 * (step.begun - origin) / whole, 100 * step.seconds / whole
    inner = div(f"height:8px;margin-left:{min(left, 99):.1f}%;width:{width:.1f}%;min-width:2px;background:{ink}")
    return div(f"height:8px;background:{BORDER_2};overflow:hidden;min-width:120px", inner)


def _took(step: Step) -> str:
    return "" if step.seconds is None else humanize.seconds_taken(step.seconds)


def timeline(job: Job) -> Timeline:
    """Return the seven steps of a job, to be shown: scripts, data, data on the nodes, image, nodes, job, results.

    In a notebook the last line ``timeline(job)`` draws it and follows the job; ``.steps`` has it as plain data.
    """
    return Timeline(job)

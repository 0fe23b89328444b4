"""The seven steps of a job as a panel: a table with a bar for each step's time, in a notebook and in its saved page.

It is plain HTML (``saved.timeline``), written anew while the job lives, so that the last state stays in the notebook.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.follow import SummaryReader
from distdl_jupyter.saved import timeline as saved
from distdl_jupyter.views.job_page import Step, job_steps

if TYPE_CHECKING:
    from distdl_jupyter.client import Job
    from distdl_jupyter.core.view import JobView

#: Seconds between two writings.
_PACE = 0.5


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
        return saved.text(*self._now())

    def _repr_html_(self) -> str:
        return saved.html(*self._now())

    def _ipython_display_(self) -> None:
        self._write(update=False)
        if not self._follower.view.state.ended:
            # A program that executes the notebook heeds only what the running cell writes: one that waits does it.
            self._job.on_settled(lambda: self._write(update=True))
            threading.Thread(target=self._follow, name=f"distdl-timeline-{self._job.id}", daemon=True).start()

    def _follow(self) -> None:
        while not self._follower.view.state.ended:
            time.sleep(_PACE)
            try:
                self._write(update=True)
            except JobNotFound as error:
                self._display({"text/plain": error.message}, update=True)
                return

    def _write(self, *, update: bool) -> None:
        self._display({"text/html": self._repr_html_(), "text/plain": repr(self)}, update=update)

    def _display(self, bundle: dict[str, str], *, update: bool) -> None:
        from IPython.display import publish_display_data

        publish_display_data(
            bundle,  # type: ignore[no-untyped-call]
            transient={"display_id": self._display_id},
            update=update,
        )


def timeline(job: Job) -> Timeline:
    """Return the seven steps of a job for display: scripts, data, data on the nodes, image, nodes, job, results.

    As the last line of a cell, ``timeline(job)`` displays the steps live; ``.steps`` returns them as plain data.
    """
    return Timeline(job)

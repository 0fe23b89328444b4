"""What a cell leaves behind for a job: one output in several forms, live now and readable for ever.

``application/vnd.distdl.job+json`` names the job for front ends that know it, the widget view is the live panel,
``text/html`` and ``text/plain`` are the job's last state. The output is written when the job is shown, and once more
when it has ended: before ``job.wait()`` returns in this kernel, else by a thread.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import pictures
from distdl_jupyter.core.errors import JobNotFound, PluginUnavailable
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.widgets.widget import cell_id

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.html.job import ShownPicture
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.widgets.job import JobPanel

#: Seconds for which a cell that waits for the job has the first turn to write its end.
_TURN = 1.0
#: Bytes of the pictures that a notebook keeps of one job.
_KEPT = 1_000_000
#: Seconds that a cell reads a job before it shows it.
_FIRST = 0.2
JOB_MIME = "application/vnd.distdl.job+json"


def show(job: Job) -> None:
    """Display a job in the running cell."""
    # Front ends that draw widgets name the cell they ask for.
    shown = Shown(job, with_widget=bool(cell_id()))
    job.on_settled(shown.waited)
    shown.start()


class Shown:
    """One displayed output of a job."""

    def __init__(self, job: Job, *, with_widget: bool) -> None:
        self._job = job
        self._display_id = uuid.uuid4().hex
        self._panel: JobPanel | None = _panel(job) if with_widget else None
        self._settling = threading.Lock()
        self._settled = self._waited = False

    def start(self) -> None:
        """Display now, and see to it that the end will be shown."""
        self._first = self._read(_FIRST)
        _display(self._bundle(self._first), self._display_id, update=False)
        threading.Thread(target=self._watch, name=f"distdl-output-{self._job.id}", daemon=True).start()

    def waited(self) -> None:
        """Write the last state of the ended job from the cell that waits for it.

        A front end that draws widgets takes the thread's message just as well and gets none twice. One that does not,
        such as a program that executes the notebook, heeds only what belongs to the cell it is running.
        """
        with self._settling:
            if not self._waited and not (self._settled and self._panel is not None):
                self._settle()
            self._waited = True

    def _watch(self) -> None:
        with contextlib.suppress(JobNotFound):  # _settle shows that the job was removed
            for _ in JobReader(self._job.folder).follow():
                pass
            time.sleep(_TURN)
        with self._settling:
            if not self._settled:
                self._settle()

    def _settle(self) -> None:
        try:
            bundle = self._bundle(self._read(math.inf))
        except JobNotFound:
            bundle = self._bundle(self._first, removed=True)
        _display(bundle, self._display_id, update=True)
        self._settled = True

    def _read(self, seconds: float) -> PageReader:
        """Read the job: the state and the newest rows however long they take, the curves of long ago in the time."""
        seen = PageReader(self._job.folder)
        until = time.monotonic() + seconds
        while seen.step():
            if seen.complete and time.monotonic() > until:
                break
        return seen

    def _bundle(self, seen: PageReader, *, removed: bool = False) -> dict[str, Any]:
        view = seen.view
        result = view.ranks[0].result or ""
        shown = newest_pictures(self._job.folder.path, view)
        bundle: dict[str, Any] = {
            JOB_MIME: {"id": view.id, "version": 1},
            "text/html": saved.html(view, seen.book, seen.log, seen.spec, result, shown, removed=removed),
            "text/plain": saved.text(view, seen.book, seen.log, seen.spec, result, removed=removed),
        }
        if self._panel is not None:
            bundle["application/vnd.jupyter.widget-view+json"] = {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self._panel.model_id,
            }
        return bundle


def _panel(job: Job) -> JobPanel | None:
    """Return the live panel; None where the front end cannot draw it, so that the static form is shown."""
    from distdl_jupyter.widgets.job import panel

    try:
        return panel(job)
    except PluginUnavailable:
        return None


def newest_pictures(folder: Path, view: JobView) -> list[ShownPicture]:
    """Return the newest pictures, oldest of them first, as many as a notebook keeps."""
    found: list[ShownPicture] = []
    left = _KEPT
    for one in reversed(view.pictures):
        read = pictures.read(folder, one.number)
        if read is not None:
            left -= len(read[0])
            if left < 0:
                break
            found.append((one, *read))
    return found[::-1]


def _display(bundle: dict[str, Any], display_id: str, *, update: bool) -> None:
    from IPython.display import publish_display_data

    publish_display_data(
        bundle,  # type: ignore[no-untyped-call]
        transient={"display_id": display_id},
        update=update,
    )

"""A job in a notebook: the output of a cell, and the widget that ``panel(job)`` returns.

JupyterLab and Notebook draw both by the id of the job, with the view of their job pages, which the server updates. For
other front ends the page that a notebook saves (``html.job``) is redrawn once a second. A saved notebook keeps the
page of the job's end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import traitlets

from distdl_jupyter.core import pictures
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.views.card import failure_card
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.ranks import publish
from distdl_jupyter.widgets.widget import PageWidget, cell_id, has_extension

if TYPE_CHECKING:
    from distdl_jupyter.html.job import ShownPicture
    from distdl_jupyter.jobs.client import Job

JOB_MIME = "application/vnd.distdl.job+json"
#: Seconds between two updates of a page, and of the traits of a panel whose page the server updates.
_REDRAW, _POLL = 1.0, 0.25
#: Seconds for which a waiting cell may write the job's end before a thread does.
_TURN = 1.0
#: Bytes of the pictures that a notebook keeps of one job.
_KEPT = 1_000_000
#: Seconds for which a page reads curves of long ago before it is drawn.
_FIRST = 0.2


def show(job: Job) -> None:
    """Display a job in the running cell."""
    output = JobOutput(job)
    job.on_settled(output.waited)
    output.start()


class JobOutput:
    """A displayed output of a job: drawn when the job is shown, and once more when it has ended."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._display_id = uuid.uuid4().hex
        self._reader = PageReader(job.folder)
        # A front end with widgets names the cell. It also accepts updates from a thread.
        self._accepts_updates = bool(cell_id())
        self._settling = threading.Lock()
        self._settled = self._waited = False

    def start(self) -> None:
        """Display the job now, and start the thread that shows its end."""
        read(self._reader, _FIRST)
        self._display(update=False)
        threading.Thread(target=self._watch, name=f"distdl-output-{self._job.id}", daemon=True).start()

    def waited(self) -> None:
        """Write the last state of the ended job from the cell that waits for it.

        A program that executes a notebook accepts only what belongs to the running cell. A front end with widgets
        accepts the message of the thread, and gets only one.
        """
        with self._settling:
            if not self._waited and not (self._settled and self._accepts_updates):
                self._settle()
            self._waited = True

    def _watch(self) -> None:
        with contextlib.suppress(JobNotFound):  # _settle shows that the job was removed
            if has_extension():
                for _ in JobReader(self._job.folder).follow():
                    pass
            else:
                self._redraw()
            time.sleep(_TURN)
        with self._settling:
            if not self._settled:
                self._settle()

    def _redraw(self) -> None:
        while not self._reader.view.state.ended:
            time.sleep(_REDRAW)
            if read(self._reader, _FIRST):
                self._display(update=True)

    def _settle(self) -> None:
        try:
            reader = PageReader(self._job.folder)
            read(reader, math.inf)
            self._reader = reader
        except JobNotFound:
            self._display(update=True, removed=True)
        else:
            self._display(update=True)
        self._settled = True

    def _display(self, *, update: bool, removed: bool = False) -> None:
        bundle = {JOB_MIME: {"id": self._job.id, "version": 1}, **forms(self._reader, removed=removed)}
        publish(bundle, self._display_id, update)


class JobPanel(PageWidget):
    """One job, live. ``state``, ``progress``, ``metrics`` and ``failure`` may be observed; the kernel sets them."""

    job_id = traitlets.Unicode().tag(sync=True)
    #: The job's state, such as "running".
    state = traitlets.Unicode()
    #: How much is done, from 0 to 1; None if the job did not report it.
    progress = traitlets.Float(None, allow_none=True)
    #: The newest value of each metric, the mean over the ranks.
    metrics = traitlets.Dict()
    #: The first failure (rank, error type, message, frames), None while there is none.
    failure: traitlets.Dict[str, Any] = traitlets.Dict(None, allow_none=True)
    #: Whether the kernel draws the page of the job. A page sets it if its server does not know the job.
    redrawn = traitlets.Bool().tag(sync=True)

    def __init__(self, job: Job) -> None:
        self.job = job
        self._stop = threading.Event()
        super().__init__("job", job_id=job.id, redrawn=not has_extension())
        self._follow()

    @traitlets.observe("redrawn")
    def _on_redrawn(self, _change: object) -> None:
        if self.comm is not None:
            self._follow()

    def close(self) -> None:
        """Stop the updates; the job keeps running."""
        self._stop.set()
        if self.comm is not None:
            self.layout.close()
        super().close()

    def _follow(self) -> None:
        """Read the job in a new thread, which replaces the one before."""
        self._stop.set()
        self._stop = threading.Event()
        threading.Thread(target=self._run, args=(self._stop,), name=f"distdl-panel-{self.job_id}", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        reader: JobReader | None = None
        try:
            reader = PageReader(self.job.folder) if self.redrawn else JobReader(self.job.folder)
            news = True
            while not stop.is_set():
                news = read(reader, _FIRST) or news
                if news:
                    self._update(reader)
                elif reader.view.state.ended:
                    return
                news = False
                stop.wait(_REDRAW if self.redrawn else _POLL)
        except JobNotFound:
            if isinstance(reader, PageReader):
                self.value = forms(reader, removed=True)["text/html"]
        except Exception:
            logging.getLogger(__name__).warning("The live view of job %s has stopped.", self.job_id, exc_info=True)

    def _update(self, reader: JobReader) -> None:
        view = reader.view
        failure = failure_card(view)
        with self.hold_trait_notifications():
            self.state = view.state.value
            self.progress = view.done / view.total if view.done is not None and view.total else None
            self.metrics = {name: metric.mean for name, metric in view.metrics.items()}
            self.failure = None if failure is None else to_json(failure)  # type: ignore[assignment]  # None is allowed
            if isinstance(reader, PageReader):
                self.value = forms(reader)["text/html"]


def panel(job: Job) -> JobPanel:
    """Return the live panel of a job as a widget, for display or for a layout with other widgets."""
    return JobPanel(job)


def read(reader: JobReader, seconds: float) -> bool:
    """Read what is new of a job; return whether there was anything. Raises JobNotFound.

    A page reads the state and the newest rows of the log, however long they take, and the curves of long ago for at
    most ``seconds``.
    """
    if not isinstance(reader, PageReader):
        before = reader.cursor
        reader.catch_up()
        return reader.cursor != before
    news = reader.advance(seconds)
    while not reader.complete and not reader.idle:
        news = reader.advance(seconds) or news
    return news


def forms(reader: PageReader, *, removed: bool = False) -> dict[str, str]:
    """Return the page and the text of a job that a notebook keeps, by MIME type."""
    view = reader.view
    result = view.ranks[0].result or ""
    shown = newest_pictures(reader)
    return {
        "text/html": saved.html(view, reader.book, reader.log, reader.spec, result, shown, removed=removed),
        "text/plain": saved.text(view, reader.book, reader.log, reader.spec, result, removed=removed),
    }


def newest_pictures(reader: PageReader) -> list[ShownPicture]:
    """Return the newest pictures of a job, the oldest of them first, as many as a notebook keeps."""
    shown: list[ShownPicture] = []
    left = _KEPT
    for picture in reversed(reader.view.pictures):
        data = pictures.read(reader.folder.path, picture.number)
        if data is not None:
            left -= len(data[0])
            if left < 0:
                break
            shown.append((picture, *data))
    return shown[::-1]

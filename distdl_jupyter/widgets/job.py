"""The widget that ``panel(job)`` returns. It shows the same page as the output of a job (``jobs.output``)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import traitlets

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.jobs.output import REDRAW, forms, has_extension, read_page
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.views.card import failure_card
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.widget import PageWidget

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job

#: Seconds between two updates of the traits, if the server updates the page of the panel.
_POLL = 0.25


class JobPanel(PageWidget):
    """The live view of one job. The kernel sets the observable ``state``, ``progress``, ``metrics`` and ``failure``."""

    job_id = traitlets.Unicode().tag(sync=True)
    #: The job's state, such as "running".
    state = traitlets.Unicode()
    #: Progress from 0 to 1; None if the job did not report it.
    progress = traitlets.Float(None, allow_none=True)
    #: The newest mean of each metric over the ranks.
    metrics = traitlets.Dict()
    #: The first failure (rank, error type, message, frames), None while there is none.
    failure: traitlets.Dict[str, Any] = traitlets.Dict(None, allow_none=True)
    #: Whether the kernel draws the page of the job. The page sets this if its server does not know the job.
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
        super().close()

    def _follow(self) -> None:
        """Read the job in a new thread, which replaces the previous one."""
        self._stop.set()
        self._stop = threading.Event()
        threading.Thread(target=self._run, args=(self._stop,), name=f"distdl-panel-{self.job_id}", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        reader: JobReader | None = None
        try:
            reader = PageReader(self.job.folder) if self.redrawn else JobReader(self.job.folder)
            has_changes = True
            while not stop.is_set():
                has_changes = _read(reader) or has_changes
                if has_changes:
                    self._update(reader)
                elif reader.view.state.ended:
                    return
                has_changes = False
                stop.wait(REDRAW if self.redrawn else _POLL)
        except JobNotFound:
            if isinstance(reader, PageReader):
                self.value = forms(reader, removed=True)["text/html"]
        except Exception:
            logging.getLogger(__name__).warning("The live view of job %s has stopped.", self.job_id, exc_info=True)

    def _update(self, reader: JobReader) -> None:
        view = reader.view
        with self.hold_trait_notifications():
            self.state = view.state.value
            self.progress = view.done / view.total if view.done is not None and view.total else None
            self.metrics = {name: metric.mean for name, metric in view.metrics.items()}
            self.failure = to_json(failure_card(view))
            if isinstance(reader, PageReader):
                self.value = forms(reader)["text/html"]


def panel(job: Job) -> JobPanel:
    """Return the live panel of a job as a widget, for display or for a layout with other widgets."""
    return JobPanel(job)


def _read(reader: JobReader) -> bool:
    """Read new data of a job; return whether there was any. Raises JobNotFound."""
    if isinstance(reader, PageReader):
        return read_page(reader)
    before = reader.cursor
    reader.catch_up()
    return reader.cursor != before

"""The widget that ``panel(job)`` returns. It shows the same page as the output of a job (``jobs.output``).

With the extension, the server reads the job, once for all pages; the kernel reads it only if a trait is used.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import traitlets

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.output import REDRAW_SECONDS, has_extension, make_mime_bundle, read_page
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.views.card import make_failure_card
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.widget import PageWidget

#: The traits that the kernel updates, and the method that observes them; their first use starts the updates.
_LIVE_TRAITS = ("state", "progress", "metrics", "failure", "observe")
#: Seconds between two updates of the traits if the kernel does not draw the page.
_POLL_SECONDS = 0.25


class JobPanel(PageWidget):
    """The live view of one job. The kernel sets the observable ``state``, ``progress``, ``metrics`` and ``failure``."""

    job_id = traitlets.Unicode().tag(sync=True)
    #: The job's state, such as "running".
    state = traitlets.Unicode()
    #: Progress from 0 to 1, or None if the job did not report it.
    progress = traitlets.Float(None, allow_none=True)
    #: The newest mean of each metric over the ranks.
    metrics = traitlets.Dict()
    #: The first failure (rank, error type, message, frames), or None if there is none.
    failure: traitlets.Dict[str, Any] = traitlets.Dict(None, allow_none=True)
    #: Whether the kernel draws the page of the job. The page sets this if its server does not know the job.
    redrawn = traitlets.Bool().tag(sync=True)
    #: Ends the updates when it is set; None before the updates start.
    _stop_event: threading.Event | None = threading.Event()

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__("job", job_id=job.id, redrawn=not has_extension())
        self._stop_event = None
        if self.redrawn:
            self._start_updates()

    def __getattribute__(self, name: str) -> Any:
        if name in _LIVE_TRAITS and self._stop_event is None:
            self._start_updates()
        return super().__getattribute__(name)

    @traitlets.observe("redrawn")
    def _on_redrawn(self, _change: object) -> None:
        if self.comm is not None:
            self._start_updates()

    def close(self) -> None:
        """Stop the updates; the job keeps running."""
        if self._stop_event is not None:
            self._stop_event.set()
        super().close()

    def _start_updates(self) -> None:
        """Read the job once, then continue in a thread, which replaces the previous one."""
        if self._stop_event is not None:
            self._stop_event.set()
        self._stop_event = threading.Event()
        updates = self._run_updates(self._stop_event)
        next(updates, None)
        threading.Thread(target=deque, args=(updates, 0), name=f"distdl-{self.job_id}", daemon=True).start()

    def _run_updates(self, stop: threading.Event) -> Iterator[None]:
        """Update the traits whenever the job has changed, until it ends."""
        reader: JobReader | None = None
        try:
            reader = PageReader(self.job.folder) if self.redrawn else JobReader(self.job.folder)
            read = partial(read_page, reader) if isinstance(reader, PageReader) else reader.read
            read()
            self._update(reader)
            yield
            while not stop.wait(REDRAW_SECONDS if self.redrawn else _POLL_SECONDS):
                if read():
                    self._update(reader)
                elif reader.view.state.ended:
                    return
        except JobNotFound:
            if isinstance(reader, PageReader):
                self.value = make_mime_bundle(reader, is_removed=True)["text/html"]
        except Exception:
            logging.getLogger(__name__).warning("The live view of job %s has stopped.", self.job_id, exc_info=True)

    def _update(self, reader: JobReader) -> None:
        view = reader.view
        with self.hold_trait_notifications():
            self.state = view.state.value
            self.progress = view.done / view.total if view.done is not None and view.total else None
            self.metrics = {name: metric.mean for name, metric in view.metrics.items()}
            self.failure = to_json(make_failure_card(view))
            if isinstance(reader, PageReader):
                self.value = make_mime_bundle(reader)["text/html"]


def panel(job: Job) -> JobPanel:
    """Return the live panel of a job as a widget, for display or for a layout with other widgets."""
    return JobPanel(job)

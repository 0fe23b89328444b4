"""The output of a cell that shows a job.

JupyterLab and Notebook draw it from the job's id with the component of their job pages, which the server updates. For
other front ends, the page stored in the notebook (``html.job``) is redrawn once a second. A saved notebook contains the
final page of the job.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.html import job as page
from distdl_jupyter.jobs.reader import JobReader, PageReader

if TYPE_CHECKING:
    from distdl_jupyter.html.job import PictureData
    from distdl_jupyter.jobs.client import Job

JOB_MIME = "application/vnd.distdl.job+json"
#: Seconds between two updates of a page.
REDRAW_SECONDS = 1.0
#: Maximum seconds of reading old curves before a page is drawn.
_READ_SECONDS = 0.2
#: Seconds that the thread waits after the end of the job, so that a cell that waits can draw the final page first.
_SETTLE_SECONDS = 1.0
#: Maximum size of one job's pictures in a notebook, in bytes.
_MAX_PICTURE_BYTES = 1_000_000


def show(job: Job) -> None:
    """Display a job in the running cell."""
    output = JobOutput(job)
    job.on_settled(output.draw_final_page)
    output.start()


class JobOutput:
    """A displayed output of a job: drawn when the job is shown, and once more when it has ended."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._display_id = uuid.uuid4().hex
        self._reader = PageReader(job.folder)
        # A front end with widgets sends the cell's id and accepts updates from a thread.
        self._accepts_updates = bool(get_cell_id())
        self._settle_lock = threading.Lock()
        self._is_settled = self._has_waited = False

    def start(self) -> None:
        """Display the job, and start the thread that draws the final page."""
        read_page(self._reader)
        self._display(update=False)
        threading.Thread(target=self._watch, name=f"distdl-output-{self._job.id}", daemon=True).start()

    def draw_final_page(self) -> None:
        """Draw the final page of the job from the cell that waits for it.

        A program that executes a notebook accepts only output of the running cell. A front end with widgets gets only
        one message, from the thread.
        """
        with self._settle_lock:
            if not self._has_waited and not (self._is_settled and self._accepts_updates):
                self._settle()
            self._has_waited = True

    def _watch(self) -> None:
        with contextlib.suppress(JobNotFound):  # _settle shows that the job was removed
            if has_extension():
                for _ in JobReader(self._job.folder).follow():
                    pass
            else:
                self._redraw()
            time.sleep(_SETTLE_SECONDS)
        with self._settle_lock:
            if not self._is_settled:
                self._settle()

    def _redraw(self) -> None:
        while not self._reader.view.state.ended:
            time.sleep(REDRAW_SECONDS)
            if read_page(self._reader):
                self._display(update=True)

    def _settle(self) -> None:
        try:
            reader = PageReader(self._job.folder)
            reader.catch_up()
            self._reader = reader
        except JobNotFound:
            self._display(update=True, is_removed=True)
        else:
            self._display(update=True)
        self._is_settled = True

    def _display(self, *, update: bool, is_removed: bool = False) -> None:
        bundle = {JOB_MIME: {"id": self._job.id, "version": 1}, **make_mime_bundle(self._reader, is_removed=is_removed)}
        publish(bundle, self._display_id, update)


def read_page(reader: PageReader) -> bool:
    """Read new data for a page; return whether there was any. Raises JobNotFound.

    State and newest log rows are always read, old curves only for a short time.
    """
    has_changes = reader.advance(_READ_SECONDS)
    while not reader.has_first_log and not reader.is_idle:
        has_changes = reader.advance(_READ_SECONDS) or has_changes
    return has_changes


def make_mime_bundle(reader: PageReader, *, is_removed: bool = False) -> dict[str, str]:
    """Return the page and the text of a job for a saved notebook, by MIME type."""
    view = reader.view
    result = view.ranks[0].result or ""
    pictures = select_pictures(reader)
    return {
        "text/html": page.render_html(
            view, reader.curves, reader.log, reader.spec, result, pictures, is_removed=is_removed
        ),
        "text/plain": page.render_text(view, reader.curves, reader.spec, result, is_removed=is_removed),
    }


def select_pictures(reader: PageReader) -> list[PictureData]:
    """Return the newest pictures of a job within the notebook's limit, oldest first."""
    pictures: list[PictureData] = []
    remaining = _MAX_PICTURE_BYTES
    for picture in reversed(reader.view.pictures):
        data = reader.folder.read_picture(picture.number)
        if data is not None:
            remaining -= len(data[0])
            if remaining < 0:
                break
            pictures.append((picture, *data))
    return pictures[::-1]


# the front end of the running cell --------------------------------------------------------------------


def publish(bundle: dict[str, Any], display_id: str, update: bool) -> None:  # noqa: FBT001 - like IPython's function
    """Display an output of the running cell, or update it."""
    from IPython.display import publish_display_data

    publish_display_data(bundle, transient={"display_id": display_id}, update=update)  # type: ignore[no-untyped-call]


def has_extension() -> bool:
    """Return whether the front end of the running cell may have JupyterLab extensions."""
    return "google.colab" not in sys.modules and not get_cell_id().startswith("vscode-")


def get_cell_id() -> str:
    """Return the front end's id of the running cell, or "" outside notebooks."""
    try:
        from IPython.core.getipython import get_ipython

        parent: Any = get_ipython().get_parent()  # type: ignore[union-attr]
    except (ImportError, AttributeError, LookupError):
        return ""
    return str(((parent or {}).get("metadata") or {}).get("cellId") or "")

"""The job panel: one job, live, as a widget. Its page shows the same view as JupyterLab's pages do.

What those are told by the server, a page of this widget is told by the kernel: it subscribes by messages, and hears the
same messages (``live``) as buffers, one JSON text each.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import traitlets

from distdl_jupyter.core import pictures
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.html.page import data_url
from distdl_jupyter.live.messages import JobSubscription
from distdl_jupyter.live.session import JobSession
from distdl_jupyter.views.card import card
from distdl_jupyter.views.job_page import log_changes
from distdl_jupyter.views.profile import job_profile
from distdl_jupyter.views.stacks import stacks as shown_stacks
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.widget import PageWidget, made_for_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.jobs.reader import PageReader
    from distdl_jupyter.views.job_page import LogChanges
    from distdl_jupyter.widgets.widget import Calls

#: Rows of the log that a page gets at once of those before its first.
_OLDER = 5000


class JobPanel(PageWidget):
    """One job, live. ``state``, ``progress``, ``metrics`` and ``failure`` may be observed; the kernel sets them."""

    _view_name = traitlets.Unicode("job").tag(sync=True)
    job_id = traitlets.Unicode().tag(sync=True)
    #: The job's state, such as "running".
    state = traitlets.Unicode()
    #: How much is done, from 0 to 1; None where nobody said.
    progress = traitlets.Float(None, allow_none=True)
    #: The newest value of each metric, the mean over the ranks.
    metrics = traitlets.Dict()
    #: The first failure (rank, error type, message, frames), None while there is none.
    failure: traitlets.Dict[str, Any] = traitlets.Dict(None, allow_none=True)

    def __init__(self, job: Job) -> None:
        super().__init__(job_id=job.id)
        self.job = job
        self._session = JobSession(job.folder, self)

    def close(self) -> None:
        """End the live view; the job goes on."""
        if self.comm is not None:
            self._session.stop()
            self.layout.close()
        super().close()

    # ---- what the session's thread does ----

    def send_messages(self, viewer: str, messages: list[bytes], *, settled: bool) -> None:
        """Send messages to one page's view."""
        self.send({"type": "told", "viewer": viewer, "settled": settled}, buffers=messages)

    def on_change(self, reading: PageReader) -> None:
        """Set the traits to what is known now."""
        view = reading.view
        failure = card(view, view.last_sign, has_checkpoints=reading.has_checkpoints).failure
        with self.hold_trait_notifications():
            self.state = view.state.value
            self.progress = view.done / view.total if view.done is not None and view.total else None
            self.metrics = {name: metric.mean for name, metric in view.metrics.items()}
            self.failure = None if failure is None else to_json(failure)  # type: ignore[assignment]  # None is allowed

    def on_error(self, error: Exception) -> None:
        """Say in the kernel's log why the view stands still; the page says that nothing is heard."""
        logging.getLogger(__name__).warning("The live view of job %s has stopped.", self.job_id, exc_info=error)

    # ---- what a page says ----

    def on_message(self, message: dict[str, Any]) -> None:
        """Take a page's message. A thread answers a question: a job may be slow to reach, the page must not wait."""
        viewer = str(message.get("viewer", ""))
        if message.get("type") == "subscribe":
            wanted = dict(message.get("subscription") or {})
            request = msgspec.convert(wanted.get("job", {}).get(self.job_id, {}), JobSubscription)
            self._session.subscribe(viewer, int(wanted.get("number", 0)), request)
        elif message.get("type") == "leave":
            self._session.leave(viewer)
        elif message.get("ask") == "docs":  # at once: before the first card, which may show a link
            super().on_message(message)
        else:
            threading.Thread(target=super().on_message, args=(message,), daemon=True).start()

    @property
    def calls(self) -> Calls:
        """What a page may ask for."""
        return {
            "cancel": lambda now: self.job.cancel(now=now),
            "rerun": lambda: _begin(self.job.rerun),
            "resume": lambda: _begin(self.job.resume),
            "take_stacks": self.job.ask_stacks,
            "stacks": lambda number: shown_stacks(self.job.stacks(kept=True, number=_checked(number))),
            "take_profile": self.job.ask_profile,
            "profile": lambda number: job_profile(self.job.profile(kept=True, number=_checked(number))),
            "picture": self._picture,
            "log": lambda before: self._session.use(lambda reading: _rows_before(reading, before)),
        }

    def _picture(self, number: int) -> str:
        found = pictures.read(self.job.folder.path, number) if type(number) is int else None
        if found is None:
            raise JobNotFound("This image no longer exists.", code="widget-picture-gone")
        return data_url(*found)


def _checked(number: object) -> int:
    """Return the number in a message of a page, -1 for anything that is not one."""
    return number if type(number) is int else -1


def _rows_before(reading: PageReader, before: int) -> LogChanges:
    return log_changes(reading.log, reading.window.before(before, _OLDER))


def _begin(start: Callable[[], Job]) -> None:
    """Start another job and show it below; a panel stays with its own."""
    from distdl_jupyter.widgets.output import show

    show(start())


def panel(job: Job) -> JobPanel:
    """Return the live panel of a job as a widget, for display or for a layout with other widgets.

    Raises PluginUnavailable if the front end needs anywidget and it is not installed.
    """
    return made_for_page(JobPanel)(job)

"""A job that is read in a thread of its own for its hearers, where no event loop does it: in a kernel.

The thread ends when the job has ended and everybody was told everything; a new subscription starts it again.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from distdl_jupyter.core.log import TAIL
from distdl_jupyter.live.job import LiveJob
from distdl_jupyter.live.messages import CurveRequest, JobSubscription, LogRequest
from distdl_jupyter.live.subscriber import JobSubscriber, Pace, heartbeat, welcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.jobs.reader import PageReader

T = TypeVar("T")

#: Seconds between two looks at a log that grew a moment ago, and at a quiet one.
_POLL, _QUIET_POLL = 0.05, 0.12
#: The part of the time in which a flood is read: the process has a user's own work to do.
_SHARE = 0.3
#: Seconds between two signs of life, between two calls of ``on_change``, and between two messages to everybody.
_BEAT, _CHANGE, _EVERYBODY = 1.0, 0.25, 2.0
#: The viewer that is told until somebody subscribes: a page may not reach a busy process.
EVERYBODY = ""


class Listener(Protocol):
    """Where messages go. Called by the session's thread."""

    def send_messages(self, viewer: str, messages: list[bytes], *, settled: bool) -> None:
        """Send messages to a viewer; ``settled`` says that there will be no more."""

    def on_change(self, reading: PageReader) -> None:
        """Take over what is known now."""

    def on_error(self, error: Exception) -> None:
        """Take note of why it cannot go on."""


class JobSession:
    """One job and who looks at it. ``live`` and ``gone`` are what a JobSubscriber asks."""

    def __init__(self, folder: JobFolder, listener: Listener) -> None:
        self.live: LiveJob | None = LiveJob(folder, kept=TAIL)
        self.gone = False
        self._listener = listener
        self._id = folder.id
        self._server_id = f"{id(self):x} {time.time()}"
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: Whether something was read of which ``on_change`` was not told.
        self._news = False
        everything = JobSubscription(LogRequest(), (CurveRequest(),), resources=True)
        self._viewers = {EVERYBODY: JobSubscriber(self._id, everything, self)}
        self._new: dict[str, int] = {}
        self._beat, self._change, self._everybody = Pace(_BEAT), Pace(_CHANGE), Pace(_EVERYBODY)
        self._start()

    def subscribe(self, viewer: str, number: int, request: JobSubscription) -> None:
        """Tell a viewer what it wants from now on; the first message has the number of the subscription."""
        with self._lock:
            self._viewers.pop(EVERYBODY, None)
            self._viewers[viewer] = JobSubscriber(self._id, request, self)
            self._new[viewer] = number
            self._start()
        self._wake.set()

    def leave(self, viewer: str) -> None:
        """Tell a viewer no more."""
        with self._lock:
            self._viewers.pop(viewer, None)
            self._new.pop(viewer, None)

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()

    def use(self, function: Callable[[PageReader], T]) -> T:
        """Return what a function finds in the reading, which stands still meanwhile."""
        assert self.live is not None
        found: T = self.live.use(function)
        return found

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name=f"distdl-panel-{self._id}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wake.clear()
                pause = self._turn()
                if pause is None:
                    return
                self._wake.wait(pause)
        except Exception as error:  # noqa: BLE001 - it is shown, in a kernel whose work goes on
            self._listener.on_error(error)
            self._thread = None

    def _turn(self) -> float | None:
        """Read and send once; return the seconds until the next turn, None when there is nothing more to tell."""
        live, began = self.live, time.monotonic()
        assert live is not None
        moved = live.look()
        self.gone = moved is None
        spent = time.monotonic() - began
        settled = self.gone or live.settled
        self._news = self._news or bool(moved)
        if settled or (self._news and self._change.due):
            self._news = False
            self._change.took(0)
            live.use(self._listener.on_change)
        if self._send(settled=settled):
            return None
        return max(_POLL, spent / _SHARE - spent) if moved else _QUIET_POLL

    def _send(self, *, settled: bool) -> bool:
        """Send all viewers what is due; say whether all is sent that will ever be."""
        with self._lock:
            viewers, new = dict(self._viewers), dict(self._new)
            self._new.clear()
        beat, everybody = self._beat.due, settled or self._everybody.due
        for viewer, subscriber in viewers.items():
            if viewer == EVERYBODY and not everybody:
                continue
            lines = [welcome(new[viewer], self._server_id)] if viewer in new else []
            lines += subscriber.due() if subscriber.busy else []
            if not lines and beat:
                lines = [heartbeat()]
            done = settled and not subscriber.busy
            if lines or done:
                self._listener.send_messages(viewer, lines, settled=done)
        for pace, is_over in ((self._beat, beat), (self._everybody, everybody)):
            if is_over:
                pace.took(0)
        with self._lock:
            if not settled or self._new or any(one.busy for one in self._viewers.values()):
                return False
            self._thread = None
            return True

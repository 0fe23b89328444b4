"""A job that is read in a thread of its own for its hearers, where no event loop does it: in a kernel.

The thread ends when the job has ended and everybody was told everything; a new subscription starts it again.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from distdl_jupyter.core.log import TAIL
from distdl_jupyter.live.job import LiveJob, encode
from distdl_jupyter.live.messages import CurveRequest, Heartbeat, JobSubscription, LogRequest, Welcome
from distdl_jupyter.live.subscriber import JobSubscriber
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.readers import Reading

T = TypeVar("T")

#: Seconds between two looks at a log that grew a moment ago, and at a quiet one.
_POLL, _QUIET_POLL = 0.05, 0.12
#: The part of the time in which a flood is read: the process has a user's own work to do.
_SHARE = 0.3
#: Seconds between two signs of life, between two calls of ``changed``, and between two messages to everybody.
_BEAT, _CHANGED, _EVERYBODY = 1.0, 0.25, 2.0
#: The viewer that is told until somebody subscribes: a page may not reach a busy process.
EVERYBODY = ""


class Hearer(Protocol):
    """Where messages go. Called by the session's thread."""

    def told(self, viewer: str, messages: list[bytes], *, settled: bool) -> None:
        """Send messages to a viewer; ``settled`` says that there will be no more."""

    def changed(self, reading: Reading) -> None:
        """Take over what is known now."""

    def broke(self, error: Exception) -> None:
        """Hear why it cannot go on."""


class JobSession:
    """One job and who looks at it. ``live`` and ``gone`` are what a JobSubscriber asks."""

    def __init__(self, folder: JobFolder, hearer: Hearer) -> None:
        self.live: LiveJob | None = LiveJob(folder, kept=TAIL)
        self.gone = False
        self._hearer = hearer
        self._id = folder.id
        self._server_id = f"{id(self):x} {time.time()}"
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: Whether something was read of which ``changed`` was not told.
        self._news = False
        everything = JobSubscription(LogRequest(), (CurveRequest(),))
        self._viewers = {EVERYBODY: JobSubscriber(self._id, everything, self)}
        self._new: dict[str, int] = {}
        self._changed_at = self._said_at = self._everybody_at = 0.0
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

    def use(self, function: Callable[[Reading], T]) -> T:
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
            self._hearer.broke(error)
            self._thread = None

    def _turn(self) -> float | None:
        """Read and tell once; return the seconds until the next turn, None when there is nothing more to tell."""
        live, began = self.live, time.monotonic()
        assert live is not None
        moved = live.look()
        self.gone = moved is None
        spent = time.monotonic() - began
        settled = self.gone or live.settled
        self._news = self._news or bool(moved)
        if settled or (self._news and began - self._changed_at >= _CHANGED):
            self._news, self._changed_at = False, began
            live.use(self._hearer.changed)
        if self._tell(settled=settled):
            return None
        return max(_POLL, spent / _SHARE - spent) if moved else _QUIET_POLL

    def _tell(self, *, settled: bool) -> bool:
        """Tell all viewers what is due; say whether all is told that will ever be."""
        with self._lock:
            viewers, new = dict(self._viewers), dict(self._new)
            self._new.clear()
        beat = time.monotonic() - self._said_at >= _BEAT
        for viewer, subscriber in viewers.items():
            if viewer == EVERYBODY and not settled and not self._is_time_for_everybody():
                continue
            lines = [self._welcome(new[viewer])] if viewer in new else []
            lines += subscriber.due() if subscriber.busy else []
            if not lines and beat:
                lines = [encode(to_json(Heartbeat(time.time(), "alive")))]
            done = settled and not subscriber.busy
            if lines or done:
                self._hearer.told(viewer, lines, settled=done)
        if beat:
            self._said_at = time.monotonic()
        with self._lock:
            if not settled or self._new or any(one.busy for one in self._viewers.values()):
                return False
            self._thread = None
            return True

    def _is_time_for_everybody(self) -> bool:
        now = time.monotonic()
        if now - self._everybody_at < _EVERYBODY:
            return False
        self._everybody_at = now
        return True

    def _welcome(self, number: int) -> bytes:
        return encode(to_json(Welcome(number, self._server_id, time.time(), "hello")))

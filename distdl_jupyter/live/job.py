"""One job that pages look at, read once for all of them.

* Its files are read in small steps by one thread at a time: state and metrics first, then the end of the log. A log
  that grows faster than it can be read is read on at its end (see ``core.logwindow``).
* Messages are made once for all pages that want the same; what a page was told is known to its own
  ``JobSubscriber``.
* Nothing here knows HTTP or waits for anything.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.live.messages import CurveMessage, JobMessage, LogMessage, ResourcesMessage
from distdl_jupyter.views import card, curve, job_page, resources, step_times
from distdl_jupyter.views.job_table import default_metric
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.core.log import Row
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.live.messages import CurveRequest

#: Rows of a job's log that are kept for its pages.
KEPT = 100_000
#: Rows of the first message about a log, most rows of a later one, how far behind a page begins anew, and with how many
#: rows: a flood would fill what stands between server and page with lines of seconds ago.
FIRST, MOST, BEHIND, ANEW = 1000, 2000, 4000, 300
#: Seconds that a thread reads before it says what it has: until the state is known, and afterwards.
_OPENING, _TURN = 0.2, 0.05
#: Seconds for which a message that holds the clock is as good as a new one.
_FRESH = 0.2
#: Messages that are remembered.
_MADE = 16


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it travels. ``key`` is another one when it says something else (but for the clock)."""

    line: bytes
    key: str
    mark: int = 0
    more: bool = False


class LiveJob:
    """What pages are told of one job. Safe to call from any thread."""

    def __init__(self, folder: JobFolder, kept: int = KEPT) -> None:
        self.id = folder.id
        self._folder = folder
        self._lock = threading.Lock()
        self._reading = PageReader(folder, tail=kept)
        self._version = 0
        #: Whether the last look found nothing more to read.
        self._idle = False
        #: Messages by what they are about, with what they were made of.
        self._made: dict[object, tuple[object, Encoded]] = {}

    # ---- reading ----

    def read(self) -> bool:
        """Read for a moment; True when something was new. Raises OSError."""
        until, moved = time.monotonic() + (_TURN if self.seen else _OPENING), False
        while self._step():
            moved = True
            if time.monotonic() > until:
                break
            time.sleep(0.0005)  # another thread, such as that of the event loop, is let in
        self._reading.listen(received=moved)
        return moved

    def look(self) -> bool | None:
        """Read for a moment where there may be something new; True when there was, None when the job was deleted."""
        if not self.exists:
            return None
        try:
            return not self.settled and self.read()
        except JobNotFound:
            return None

    def _step(self) -> bool:
        with self._lock:
            moved = self._reading.step()
            self._version += moved
            self._idle = not moved
        return moved

    @property
    def exists(self) -> bool:
        """Whether the job was not deleted."""
        return self._folder.spec_file.exists()

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self._reading.view.state.ended

    @property
    def seen(self) -> bool:
        """Whether state and curves are those of now."""
        return self._reading.seen

    @property
    def complete(self) -> bool:
        """Whether the log is there up to now, so that pages can be told of it."""
        return self._reading.complete

    @property
    def version(self) -> int:
        """Grows with everything that was read."""
        return self._version

    @property
    def settled(self) -> bool:
        """Whether there will be no more news: the job has ended and everything was read."""
        return self.ended and self._idle

    # ---- messages ----

    def state(self) -> Encoded:
        """Return the message about the job itself."""
        with self._lock:
            known = self._made.get("job")
            if known is not None and known[0] == self._version and time.time() < known[1].mark / 1000 + _FRESH:
                return known[1]
            now = time.time()
            message = self._state(now)
            self._made["job"] = (self._version, message)
            return message

    def _state(self, now: float) -> Encoded:
        view = self._reading.view
        shown = card.card(view, now, has_checkpoints=self._reading.has_checkpoints)
        ranks = tuple(job_page.rank_row(rank) for rank in view.ranks)
        timeless = JobMessage(self.id, replace(shown, now=0.0, left=None), curve.metrics(view), ranks, "", "job")
        key = hashlib.blake2b(encode(timeless), digest_size=8).hexdigest()
        return Encoded(encode(replace(timeless, card=shown, key=key)), key, mark=int(now * 1000))

    def log(self, mark: int) -> Encoded:
        """Return the message about what is new in the log since a mark.

        0, a mark from elsewhere and one that is far behind begin anew with the newest rows.
        """
        with self._lock:
            book = self._reading.log
            return self._once(("log", mark), book.mark, lambda: self._log(mark))

    def _log(self, mark: int) -> Encoded:
        book = self._reading.log
        if not book.knows(mark):
            return self._newest(ANEW if mark else FIRST)
        found = book.changes(mark, MOST)
        if found.more > BEHIND:
            return self._newest(ANEW)
        return self._rows(found.rows, found.mark, whole=False, more=found.more > 0)

    def _newest(self, many: int) -> Encoded:
        book = self._reading.log
        return self._rows(book.between(book.next - many, book.next), book.mark, whole=True)

    def _rows(self, found: list[Row], mark: int, *, whole: bool, more: bool = False) -> Encoded:
        changes = job_page.log_changes(self._reading.log, found)
        message = LogMessage(**_values(changes), id=self.id, mark=mark, whole=whole, type="log")
        return Encoded(encode(message), str(mark), mark, more)

    @property
    def mark(self) -> int:
        """The mark of the log now."""
        return self._reading.log.mark

    def curve(self, request: CurveRequest) -> Encoded | None:
        """Return the message about a curve, None while nothing was reported."""
        request = msgspec.structs.replace(request, key="")
        with self._lock:
            metric, count = self._wanted(request)
            if not count:
                return None
            return self._once(request, (metric, count), lambda: self._curve(request, metric, count))

    def curve_key(self, request: CurveRequest) -> str:
        """Return the key of what ``curve`` would return, "" for nothing."""
        with self._lock:
            metric, count = self._wanted(request)
        return f"{metric} {count}" if count else ""

    def _wanted(self, request: CurveRequest) -> tuple[str, int]:
        book = self._reading.book
        metric = request.metric or default_metric(book.names)
        return metric, book.count(metric)

    def _curve(self, request: CurveRequest, metric: str, count: int) -> Encoded:
        made = curve.curve(
            self._reading.book, metric, mode=request.mode, log=request.log, earlier=self._reading.earlier
        )
        message = CurveMessage(**_values(made), id=self.id, asked=request.metric, key=f"{metric} {count}", type="curve")
        return Encoded(encode(message), message.key)

    def resources_key(self) -> str:
        """Return the key of what ``resources`` would return, "" for nothing."""
        with self._lock:
            return self._resources_key()

    def _resources_key(self) -> str:
        samples, steps = self._reading.resources.count, self._reading.steps.count
        return f"{samples} {steps} {self.ended}" if samples or steps else ""

    def resources(self) -> Encoded | None:
        """Return the message about what ranks and machines use and about the time of steps, None without either."""
        with self._lock:
            key = self._resources_key()
            return self._once("resources", key, lambda: self._resources(key)) if key else None

    def _resources(self, key: str) -> Encoded:
        reading = self._reading
        made = resources.resources(reading.resources, running=reading.view.state is State.RUNNING)
        hosts = {rank.rank: rank.host or "" for rank in reading.view.ranks}
        times = reading.steps.times(hosts, ended=self.ended)
        time_ = step_times.job_time(times, 0) if times.rows else None
        message = ResourcesMessage(**_values(made), id=self.id, key=key, type="resources", time=time_)
        return Encoded(encode(message), key)

    def _once(self, about: object, made_of: object, make: Callable[[], Encoded]) -> Encoded:
        """Return a message that was made of the same before, else make it. The lock is held."""
        known = self._made.get(about)
        if known is None or known[0] != made_of:
            if len(self._made) > _MADE:
                self._made.clear()
            known = self._made[about] = (made_of, make())
        return known[1]

    # ---- what is asked for by itself ----

    def use(self, function: Callable[[PageReader], Any]) -> Any:
        """Return what a function finds in the reading, which stands still meanwhile."""
        with self._lock:
            return function(self._reading)


def _values(of: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with their values."""
    return {name: getattr(of, name) for name in of.__dataclass_fields__}

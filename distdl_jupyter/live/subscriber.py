"""The send state of one page for one job: the messages that the page has received and those that are due.

A slow page receives fewer messages and no duplicates: a message is created from the current state when it can be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from distdl_jupyter.live.job import Encoded, LiveJob
from distdl_jupyter.live.messages import CurveRequest, Deleted, JobSubscription
from distdl_jupyter.views.wire import encode

#: Minimum seconds between messages about a job, its log, its curves and its resources; seconds after which an unchanged
#: job is sent again for its time.
_JOB, _LOG, _CURVE, _RESOURCES, _CLOCK = 0.25, 0.08, 0.5, 2.0, 3.0
#: Maximum bytes of a message at this rate; larger messages are sent proportionally less often.
_SIZE = 64 * 1024


class RateLimit:
    """Allows at most one message every ``seconds``, and fewer if they are large."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether the next message may be sent."""
        return time.monotonic() >= self._next

    @property
    def since(self) -> float:
        """Seconds since the last message."""
        return time.monotonic() - self._last

    def sent(self, size: int) -> None:
        """Count a sent message of ``size`` bytes."""
        self._last = time.monotonic()
        self._next = self._last + self._seconds * max(1.0, size / _SIZE)


class JobSubscriber:
    """The subscription of one page to one job."""

    def __init__(self, live: LiveJob, request: JobSubscription) -> None:
        self._live = live
        self._key = request.key
        self._mark = request.log.mark if request.log else 0
        self._wants_log, self._log_begun = request.log is not None, False
        self._gone = request.key == "gone"
        self._job_pace, self._log_pace = RateLimit(_JOB), RateLimit(_LOG)
        self._topics = [_curve(live, curve) for curve in request.curves]
        if request.resources:
            self._topics.append(_Topic(_RESOURCES, "", live.resources_key, live.resources))
        self._version = -1
        #: Whether a message is pending.
        self.held = True

    @property
    def busy(self) -> bool:
        """Whether ``due`` may return messages."""
        if self._live.gone:
            return not self._gone
        clock = not self._live.ended and self._job_pace.since > _CLOCK
        return self.held or self._version != self._live.version or clock

    def due(self) -> list[bytes]:
        """Return the messages that are due. This may be slow, so do not call it in the event loop."""
        live = self._live
        if live.gone:
            lines = [] if self._gone else [encode(Deleted(live.id, "gone", "gone"))]
            self._gone, self.held = True, False
            return lines
        if not live.is_current:
            return []
        self._version, self.held = live.version, not live.complete
        lines = [*self._job_due(), *self._log_due()]
        for topic in self._topics:
            lines += topic.due()
            self.held = self.held or topic.held
        return lines

    def _job_due(self) -> list[bytes]:
        pace = self._job_pace
        if not pace.due:
            self.held = True
            return []
        message = self._live.state()
        if message.key == self._key and (self._live.ended or pace.since < _CLOCK):
            return []
        self._key = message.key
        pace.sent(len(message.line))
        return [message.line]

    def _log_due(self) -> list[bytes]:
        live, pace = self._live, self._log_pace
        if not self._wants_log or not (live.complete or self._log_begun):
            return []
        if live.mark == self._mark and (self._log_begun or self._mark):
            return []
        if not pace.due:
            self.held = True
            return []
        message = live.log(self._mark)
        self._mark, self._log_begun = message.mark, True
        self.held = self.held or message.more
        pace.sent(len(message.line))
        return [message.line]


class _Topic:
    """A message that is sent whenever its key changes; ``held`` while it is pending."""

    def __init__(self, seconds: float, key: str, newest: Callable[[], str], make: Callable[[str], Encoded]) -> None:
        self._pace, self._key = RateLimit(seconds), key
        self._newest, self._make = newest, make
        self.held = False

    def due(self) -> list[bytes]:
        """Return the message if it is due."""
        key = self._newest()
        new = bool(key) and key != self._key
        self.held = new and not self._pace.due
        if not new or self.held:
            return []
        self._key = key
        line = self._make(key).line
        self._pace.sent(len(line))
        return [line]


def _curve(live: LiveJob, request: CurveRequest) -> _Topic:
    return _Topic(_CURVE, request.key, lambda: live.curve_key(request), lambda key: live.curve(request, key))

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
_JOB_PAUSE, _LOG_PAUSE, _CURVE_PAUSE, _RESOURCES_PAUSE, _MAX_AGE = 0.25, 0.08, 0.5, 2.0, 3.0
#: Maximum bytes of a message at this rate; larger messages are sent proportionally less often.
_MAX_SIZE = 64 * 1024


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
        self._next = self._last + self._seconds * max(1.0, size / _MAX_SIZE)


class JobSubscriber:
    """The subscription of one page to one job."""

    def __init__(self, job: LiveJob, request: JobSubscription) -> None:
        self._job = job
        self._key = request.key
        self._mark = request.log.mark if request.log else 0
        self._wants_log, self._has_sent_log = request.log is not None, False
        self._has_sent_deletion = request.key == "gone"
        self._job_limit, self._log_limit = RateLimit(_JOB_PAUSE), RateLimit(_LOG_PAUSE)
        self._topics = [_curve(job, curve) for curve in request.curves]
        if request.resources:
            self._topics.append(_Topic(_RESOURCES_PAUSE, "", job.resources_key, job.resources))
        self._version = -1
        #: Whether a message is pending.
        self.held = True

    @property
    def busy(self) -> bool:
        """Whether ``due`` may return messages."""
        if self._job.is_deleted:
            return not self._has_sent_deletion
        is_outdated = not self._job.ended and self._job_limit.since > _MAX_AGE
        return self.held or self._version != self._job.version or is_outdated

    def due(self) -> list[bytes]:
        """Return the messages that are due. This may be slow, so do not call it in the event loop."""
        job = self._job
        if job.is_deleted:
            lines = [] if self._has_sent_deletion else [encode(Deleted(job.id, "gone", "gone"))]
            self._has_sent_deletion, self.held = True, False
            return lines
        if not job.is_current:
            return []
        self._version, self.held = job.version, not job.complete
        lines = [*self._job_due(), *self._log_due()]
        for topic in self._topics:
            lines += topic.due()
            self.held = self.held or topic.held
        return lines

    def _job_due(self) -> list[bytes]:
        limit = self._job_limit
        if not limit.due:
            self.held = True
            return []
        message = self._job.state()
        if message.key == self._key and (self._job.ended or limit.since < _MAX_AGE):
            return []
        self._key = message.key
        limit.sent(len(message.line))
        return [message.line]

    def _log_due(self) -> list[bytes]:
        job, limit = self._job, self._log_limit
        if not self._wants_log or not (job.complete or self._has_sent_log):
            return []
        if job.mark == self._mark and (self._has_sent_log or self._mark):
            return []
        if not limit.due:
            self.held = True
            return []
        message = job.log(self._mark)
        self._mark, self._has_sent_log = message.mark, True
        self.held = self.held or message.more
        limit.sent(len(message.line))
        return [message.line]


class _Topic:
    """A message that is sent whenever its key changes; ``held`` while it is pending."""

    def __init__(self, seconds: float, key: str, get_key: Callable[[], str], make: Callable[[str], Encoded]) -> None:
        self._limit, self._key = RateLimit(seconds), key
        self._get_key, self._make = get_key, make
        self.held = False

    def due(self) -> list[bytes]:
        """Return the message if it is due."""
        key = self._get_key()
        is_new = bool(key) and key != self._key
        self.held = is_new and not self._limit.due
        if not is_new or self.held:
            return []
        self._key = key
        line = self._make(key).line
        self._limit.sent(len(line))
        return [line]


def _curve(job: LiveJob, request: CurveRequest) -> _Topic:
    return _Topic(_CURVE_PAUSE, request.key, lambda: job.curve_key(request), lambda key: job.curve(request, key))

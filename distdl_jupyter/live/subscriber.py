"""The send state of one page for one job: the messages that the page has received, and the messages that are due.

A message is created from the current state when it can be sent, so a slow page receives fewer messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from distdl_jupyter.live.job import LiveJob, WireMessage
from distdl_jupyter.live.messages import CurveRequest, DeletionMessage, JobSubscription
from distdl_jupyter.views.wire import encode

# Minimum seconds between two messages of each type.
_JOB_SECONDS = 0.25
_LOG_SECONDS = 0.08
_CURVE_SECONDS = 0.5
_RESOURCES_SECONDS = 2.0
#: Maximum size in bytes of a message at these rates; larger messages are sent proportionally less often.
_MAX_BYTES = 64 * 1024
#: Seconds after which an unchanged job is sent again, because its message contains the time.
_MAX_AGE_SECONDS = 3.0


class RateLimit:
    """Allows at most one message every ``seconds``, and fewer if they are large."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = self._next = 0.0

    @property
    def can_send(self) -> bool:
        """Whether the next message may be sent."""
        return time.monotonic() >= self._next

    @property
    def seconds_since_last(self) -> float:
        """Seconds since the last message."""
        return time.monotonic() - self._last

    def record_sent(self, size: int) -> None:
        """Count a sent message of ``size`` bytes."""
        self._last = time.monotonic()
        self._next = self._last + self._seconds * max(1.0, size / _MAX_BYTES)


class JobSubscriber:
    """The subscription of one page to one job."""

    def __init__(self, job: LiveJob, request: JobSubscription) -> None:
        self._job = job
        self._key = request.key
        self._log_revision = request.log.mark if request.log else 0
        self._wants_log, self._has_sent_log = request.log is not None, False
        self._has_sent_deletion = request.key == "gone"
        self._job_limit, self._log_limit = RateLimit(_JOB_SECONDS), RateLimit(_LOG_SECONDS)
        self._topics = [_create_curve_topic(job, curve) for curve in request.curves]
        if request.resources:
            self._topics.append(_Topic(_RESOURCES_SECONDS, "", job.get_resources_key, job.encode_resources))
        self._version = -1
        #: Whether a message is pending.
        self.has_pending = True

    @property
    def has_updates(self) -> bool:
        """Whether ``take_messages`` may return messages."""
        if self._job.is_deleted:
            return not self._has_sent_deletion
        is_outdated = not self._job.has_ended and self._job_limit.seconds_since_last > _MAX_AGE_SECONDS
        return self.has_pending or self._version != self._job.version or is_outdated

    def take_messages(self) -> list[bytes]:
        """Return the messages that are due. This may be slow, so do not call it in the event loop."""
        job = self._job
        if job.is_deleted:
            messages = [] if self._has_sent_deletion else [encode(DeletionMessage(job.id, "gone", "gone"))]
            self._has_sent_deletion, self.has_pending = True, False
            return messages
        if not job.has_first_events:
            return []
        self._version, self.has_pending = job.version, not job.has_first_log
        messages = [*self._take_job_messages(), *self._take_log_messages()]
        for topic in self._topics:
            messages += topic.take_messages()
            self.has_pending = self.has_pending or topic.has_pending
        return messages

    def _take_job_messages(self) -> list[bytes]:
        limit = self._job_limit
        if not limit.can_send:
            self.has_pending = True
            return []
        message = self._job.encode_state()
        if message.key == self._key and (self._job.has_ended or limit.seconds_since_last < _MAX_AGE_SECONDS):
            return []
        self._key = message.key
        limit.record_sent(len(message.data))
        return [message.data]

    def _take_log_messages(self) -> list[bytes]:
        job, limit = self._job, self._log_limit
        if not self._wants_log or not (job.has_first_log or self._has_sent_log):
            return []
        if job.log_revision == self._log_revision and (self._has_sent_log or self._log_revision):
            return []
        if not limit.can_send:
            self.has_pending = True
            return []
        message = job.encode_log(self._log_revision)
        self._log_revision, self._has_sent_log = message.mark, True
        self.has_pending = self.has_pending or message.has_more
        limit.record_sent(len(message.data))
        return [message.data]


class _Topic:
    """A message that is sent whenever its key changes. ``has_pending`` is true while it is due."""

    def __init__(
        self, seconds: float, key: str, get_key: Callable[[], str], encode: Callable[[str], WireMessage]
    ) -> None:
        self._limit, self._key = RateLimit(seconds), key
        self._get_key, self._encode = get_key, encode
        self.has_pending = False

    def take_messages(self) -> list[bytes]:
        """Return the message if it is due."""
        key = self._get_key()
        is_new = bool(key) and key != self._key
        self.has_pending = is_new and not self._limit.can_send
        if not is_new or self.has_pending:
            return []
        self._key = key
        message = self._encode(key).data
        self._limit.record_sent(len(message))
        return [message]


def _create_curve_topic(job: LiveJob, request: CurveRequest) -> _Topic:
    get_key = partial(job.get_curve_key, request)
    return _Topic(_CURVE_SECONDS, request.key, get_key, partial(job.encode_curve, request))

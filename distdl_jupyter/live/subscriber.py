"""One hearer's place in a job: what it was told, and what is due to be told now.

One that is slow to take messages is told less often and never twice: they are made when they can be sent, of the state
at that moment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from distdl_jupyter.live.messages import Deleted, Heartbeat, Welcome
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from distdl_jupyter.live.job import LiveJob
    from distdl_jupyter.live.messages import CurveRequest, JobSubscription, LogRequest

#: Least seconds between two messages about a job, its log, its curve, its resources; seconds after which the clock goes
#: along.
_JOB, _LOG, _CURVE, _RESOURCES, _CLOCK = 0.25, 0.08, 0.5, 2.0, 3.0
#: Bytes for which a message may come so often; a larger one comes as much less often.
_SIZE = 64 * 1024


def welcome(number: int, server_id: str) -> bytes:
    """Return the first message of a subscription."""
    return encode(Welcome(number, server_id, time.time(), "hello"))


def heartbeat() -> bytes:
    """Return the message that says that there is nothing to say."""
    return encode(Heartbeat(time.time(), "alive"))


class Pace:
    """At most one turn every ``seconds``; a heavy one has to rest longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._next

    @property
    def since(self) -> float:
        """Seconds since the last turn."""
        return time.monotonic() - self._last

    def took(self, size: int) -> None:
        """Count a turn of so many bytes."""
        self._last = time.monotonic()
        self._next = self._last + self._seconds * max(1.0, size / _SIZE)


class SharedJob(Protocol):
    """A job that is read for its hearers: ``live`` is None until it was opened, ``gone`` when there is none."""

    live: LiveJob | None
    gone: bool


class JobSubscriber:
    """What one hearer knows of one job, and what it is due to be told; ``source`` is None for an id of no job."""

    def __init__(self, id_: str, request: JobSubscription, source: SharedJob | None) -> None:
        self._id = id_
        self._request = request
        self._source = source
        self._key = request.key
        self._curves = [_CurveSubscriber(one) for one in request.curves]
        self._mark = request.log.mark if request.log else 0
        self._log_begun = False
        self.gone = request.key == "gone"
        self._state_pace, self._log_pace = Pace(_JOB), Pace(_LOG)
        self._resources_pace, self._resources_key = Pace(_RESOURCES), ""
        self._version = -1
        #: Whether something waits for its turn.
        self.held = True

    @property
    def busy(self) -> bool:
        """Whether ``due`` may find something; else it need not be asked."""
        live = self._source.live if self._source else None
        if self._source is None or self._source.gone or live is None:
            return not self.gone
        clock = not live.ended and self._state_pace.since > _CLOCK
        return self.held or self._version != live.version or clock

    def due(self) -> list[bytes]:
        """Return the messages of now. It may take a while: not in the event loop."""
        if self._source is None or self._source.gone:
            found = [] if self.gone else [encode(Deleted(self._id, "gone", "gone"))]
            self.gone, self.held = True, False
            return found
        live = self._source.live
        if live is None or not live.seen:
            return []
        self._version, self.held = live.version, not live.complete
        curves = [line for one in self._curves for line in self._curve(live, one)]
        return [*self._state(live), *self._log(live, self._request.log), *curves, *self._resources(live)]

    def _state(self, live: LiveJob) -> list[bytes]:
        pace = self._state_pace
        if not pace.due:
            self.held = True
            return []
        message = live.state()
        if message.key == self._key and (live.ended or pace.since < _CLOCK):
            return []
        self._key = message.key
        pace.took(len(message.line))
        return [message.line]

    def _log(self, live: LiveJob, request: LogRequest | None) -> list[bytes]:
        if request is None:
            return []
        if not live.complete and not self._log_begun:
            return []
        if live.mark == self._mark and (self._log_begun or self._mark):
            return []
        pace = self._log_pace
        if not pace.due:
            self.held = True
            return []
        message = live.log(self._mark)
        self._mark, self._log_begun = message.mark, True
        self.held = self.held or message.more
        pace.took(len(message.line))
        return [message.line]

    def _resources(self, live: LiveJob) -> list[bytes]:
        key = live.resources_key() if self._request.resources else ""
        if not key or key == self._resources_key:
            return []
        if not self._resources_pace.due:
            self.held = True
            return []
        message = live.resources()
        if message is None:
            return []
        self._resources_key = message.key
        self._resources_pace.took(len(message.line))
        return [message.line]

    def _curve(self, live: LiveJob, curve: _CurveSubscriber) -> list[bytes]:
        key = live.curve_key(curve.request)
        if not key or key == curve.key:
            return []
        if not curve.pace.due:
            self.held = True
            return []
        message = live.curve(curve.request)
        if message is None:
            return []
        curve.key = message.key
        curve.pace.took(len(message.line))
        return [message.line]


class _CurveSubscriber:
    """What a hearer knows of one curve."""

    def __init__(self, request: CurveRequest) -> None:
        self.request = request
        self.key = request.key
        self.pace = Pace(_CURVE)

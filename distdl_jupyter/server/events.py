"""``POST events``: everything that a page wants to be told, in one stream of JSON lines that never ends by itself.

A page whose proxy holds a stream back asks for ``application/json`` instead and gets the messages of now in one
answer, again and again. Both are made by the same ``Subscriber``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from tornado.iostream import StreamClosedError

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.live.job import encode
from distdl_jupyter.server.base import Handler, answers, reads
from distdl_jupyter.server.messages import Batch, Heartbeat, Subscription, Welcome
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from distdl_jupyter.server.subscriber import Subscriber

T = TypeVar("T")

STREAM = "application/x-ndjson"
#: Most seconds that an answer waits for a job or a list that nobody watched before.
_OPENING = 10.0
#: Most jobs in one request, and most curves of each.
_JOBS, _CURVES = 200, 20


class _Closed(Exception):
    """The page has gone away, or the server stops."""


class Events(Handler):
    """The stream of events."""

    @answers(Batch, body=Subscription, media=STREAM)
    @reads
    async def post(self, body: Subscription) -> None:
        """Tell what is and what changes: as a stream of JSON lines, or what is new now as one answer."""
        if len(body.job) > _JOBS or any(len(wish.curves) > _CURVES for wish in body.job.values()):
            raise InvalidSpec(f"A page is told of at most {_JOBS} jobs, and of {_CURVES} curves of each.", field="job")
        self._closed = asyncio.Event()
        self.app.streams.opened(self._closed)
        subscriber = self.app.streams.subscriber(body)
        try:
            if STREAM in self.request.headers.get("Accept", ""):
                await self._stream(subscriber)
            else:
                await self._batch(subscriber, body.wait)
        except (_Closed, StreamClosedError):
            return
        finally:
            subscriber.close()
            self.app.streams.left(self._closed)

    def on_connection_close(self) -> None:
        """End at once when the page has gone away."""
        super().on_connection_close()
        if closed := getattr(self, "_closed", None):
            closed.set()

    async def _stream(self, subscriber: Subscriber) -> None:
        self.set_header("Content-Type", STREAM)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # nginx hands every line on at once
        await self._say([self._hello()])
        quiet_since = time.monotonic()
        while True:
            lines = await self._unless_closed(subscriber.due())
            if not lines and time.monotonic() - quiet_since >= self.app.keep_alive_seconds:
                lines = [encode(to_json(Heartbeat(time.time(), "alive")))]
            if lines:
                await self._say(lines)
                quiet_since = time.monotonic()
            left = self.app.keep_alive_seconds - (time.monotonic() - quiet_since)
            await self._unless_closed(subscriber.wait(max(0.0, left)))

    async def _say(self, lines: list[bytes]) -> None:
        """Send some messages and wait until the page's side has taken them: a slow page slows only itself."""
        self.write(b"".join(line + b"\n" for line in lines))
        await self._unless_closed(self.flush())

    async def _batch(self, subscriber: Subscriber, wait: float) -> None:
        began, lines = time.monotonic(), list[bytes]()
        while True:
            opening = subscriber.opening  # what nobody watched until now has to be opened first
            lines += await self._unless_closed(subscriber.due())
            left = began + (_OPENING if opening else wait) - time.monotonic()
            if left <= 0 or (not opening and (lines or subscriber.settled)):
                break
            await self._unless_closed(subscriber.wait(left))
        self.set_header("Cache-Control", "no-store")
        messages = b",".join([self._hello(), *lines])
        self.finish(b'{"messages":[' + messages + b"]}")

    def _hello(self) -> bytes:
        return encode(to_json(Welcome(self.app.streams.boot, time.time(), "hello")))

    async def _unless_closed(self, work: Awaitable[T]) -> T:
        """Return what ``work`` gives. Raises _Closed as soon as there is nobody to give it to."""
        doing = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({doing, closing}, return_when=asyncio.FIRST_COMPLETED)
            if self._closed.is_set():
                raise _Closed
            return await doing
        finally:
            closing.cancel()
            doing.cancel()

"""``GET events``: the WebSocket that pushes updates to a page.

Permissions are checked as for every other endpoint, and again while the connection is open. Jupyter's own WebSocket
settings (pings, compression) apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from distdl_jupyter.api.call import Refused
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.live.messages import Heartbeat, Subscription, Welcome
from distdl_jupyter.live.subscriber import JobSubscriber
from distdl_jupyter.server.handler import Handler, error_body
from distdl_jupyter.server.sources import ClustersSource, ListSource, Source, Sources
from distdl_jupyter.views import wire
from distdl_jupyter.views.wire import encode

#: Maximum number of jobs in one subscription, and of curves per job.
_JOBS, _CURVES = 200, 20
#: Close code: the page sent an invalid message or has lost its permission (RFC 6455, section 7.4.1).
_POLICY = 1008
_NO_UPGRADE = (
    "This address is a WebSocket, but something between the page and the Jupyter server does not forward WebSockets"
)


class Events(WebSocketMixin, WebSocketHandler, Handler):
    """A page's WebSocket: the page sends a Subscription, which replaces the previous one, and receives Messages."""

    _sending: asyncio.Task[None] | None = None

    @web.authenticated
    async def get(self) -> None:  # type: ignore[override]  # awaited all the same
        """Open a WebSocket."""
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPError(426, _NO_UPGRADE)
        await WebSocketHandler.get(self)

    def get_compression_options(self) -> dict[str, Any] | None:
        """Return the server's compression settings."""
        options: dict[str, Any] | None = self.settings.get("websocket_compression_options")
        return options

    def open(self) -> None:
        """Start sending messages."""
        WebSocketMixin.open(self)
        # Some browsers omit this header, and JupyterHub then logs a warning whenever it identifies the user.
        self.request.headers.setdefault("Sec-Fetch-Mode", "websocket")
        #: A received subscription that is not active yet.
        self._pending: Subscription | None = None
        self._notify = asyncio.Event()
        self.app.sources.pages.add(self)
        self._sending = asyncio.ensure_future(self._send_messages())

    def on_message(self, message: str | bytes) -> None:
        """Replace the current subscription."""
        try:
            self._pending = _subscription(message.encode() if isinstance(message, str) else message)
        except DistDLError as error:
            self.write_message(encode(Refused(error_body(error, 400), "refused")))
            self.close(_POLICY, "The subscription was rejected.")
        self._notify.set()

    def on_close(self) -> None:
        """Stop sending messages."""
        # Free the last messages at once: some pages reconnect often, and the list of jobs may be long.
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if (pings := vars(self).pop("ping_callback", None)) is not None:
            pings.stop()
        self.app.sources.pages.discard(self)

    async def _send_messages(self) -> None:
        subscriber = Subscriber(self.app.sources, Subscription(), self._notify)
        next_check = time.monotonic() + self.app.keep_alive_seconds
        try:
            while True:
                if (subscription := self._take_subscription()) is not None:
                    subscriber.close()
                    subscriber = Subscriber(self.app.sources, subscription, self._notify)
                lines = await subscriber.due()
                if self._pending is not None:
                    continue  # these messages belong to an outdated subscription
                if time.monotonic() >= next_check:
                    next_check = time.monotonic() + self.app.keep_alive_seconds
                    if not await self._is_still_admitted():
                        self.close(_POLICY, "The permission to view has expired.")
                        return
                    lines.append(encode(Heartbeat(time.time(), "alive")))
                # Wait until the page has received them: a slow page delays only itself.
                await asyncio.gather(*(self.write_message(line) for line in lines))
                await subscriber.wait(max(0.0, next_check - time.monotonic()))
        except WebSocketClosedError:
            return
        except Exception:
            self.log.exception("WebSocket send failed; the client will reconnect.")
            self.close()
        finally:
            subscriber.close()

    def _take_subscription(self) -> Subscription | None:
        subscription, self._pending = self._pending, None
        return subscription

    async def _is_still_admitted(self) -> bool:
        """Authenticate the user again and return whether they may still read."""
        handler = Handler(self.application, self.request)
        user = await ensure_async(self.identity_provider.get_user(handler))
        return user is not None and await handler.may(user, "read")


class Subscriber:
    """The subscription of one page. Call ``due`` whenever ``wait`` returns, and ``close`` at the end.

    ``notify`` is set whenever there may be new messages.
    """

    def __init__(self, sources: Sources, subscription: Subscription, notify: asyncio.Event) -> None:
        self._server_id, self._run, self._notify = sources.server_id, sources.app.run, notify
        #: The number of the subscription, None once its Welcome was sent.
        self._number: int | None = subscription.number
        #: The page's versions of the job list and the clusters, if it subscribes to them.
        self._marks: dict[ListSource | ClustersSource, int] = {}
        if subscription.jobs:
            self._marks[sources.of(ListSource)] = self._mark(subscription.jobs_key)
        if subscription.clusters:
            self._marks[sources.of(ClustersSource)] = self._mark(subscription.clusters_key)
        jobs = {sources.job(id_): request for id_, request in subscription.job.items()}
        self._jobs = [JobSubscriber(source.live, request) for source, request in jobs.items()]
        self._sources: list[Source] = [*self._marks, *jobs]
        for source in self._sources:
            source.join(notify)

    def close(self) -> None:
        """Unsubscribe from all sources."""
        for source in self._sources:
            source.leave(self._notify)

    def _mark(self, key: str) -> int:
        """Return the version in a list's key, 0 if the key is from another server process."""
        server_id, _, mark = key.partition(" ")
        return int(mark) if server_id == self._server_id and mark.isdecimal() and len(mark) < 16 else 0

    async def due(self) -> list[bytes]:
        """Return the messages that are due now."""
        self._notify.clear()
        lines = []
        if self._number is not None:
            lines.append(encode(Welcome(self._number, self._server_id, time.time(), "hello")))
            self._number = None
        for source, mark in self._marks.items():
            if source.mark != mark:
                self._marks[source] = source.mark
                message = source.message(mark if mark < source.mark else 0, f"{self._server_id} {source.mark}")
                lines.append(encode(message))
        for subscriber in self._jobs:
            if subscriber.busy:
                lines += await self._run(subscriber.due)
        return lines

    async def wait(self, seconds: float) -> None:
        """Wait until there may be new messages, at most this many seconds."""
        held = any(subscriber.held for subscriber in self._jobs)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._notify.wait(), min(seconds, 0.03 if held else 1.0))


def _subscription(data: bytes) -> Subscription:
    """Parse a subscription. Raises InvalidSpec."""
    subscription = wire.from_json(Subscription, data)
    if len(subscription.job) > _JOBS or any(len(request.curves) > _CURVES for request in subscription.job.values()):
        raise InvalidSpec(
            f"A page can subscribe to at most {_JOBS} jobs, and {_CURVES} curves of each.",
            code="page-subscriptions",
            field="job",
        )
    return subscription

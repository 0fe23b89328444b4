"""``GET events``: the WebSocket that pushes updates to a page.

Permissions are checked as for every other endpoint, and again while the connection is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from jupyter_core.utils import ensure_async
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.live.messages import Heartbeat, Subscription, SubscriptionError, Welcome
from distdl_jupyter.live.subscriber import JobSubscriber
from distdl_jupyter.server.feeds import ClustersFeed, Feed, Feeds, JobFeed, ListFeed, SnapshotFeed
from distdl_jupyter.server.handler import Handler, to_api_error
from distdl_jupyter.views.wire import encode, from_json

#: Close code: the page sent an invalid message or has lost its permission (RFC 6455, section 7.4.1).
_POLICY_VIOLATION = 1008
_NO_UPGRADE = (
    "This path is a WebSocket endpoint, but the request has no Upgrade header. A proxy in front of the Jupyter server "
    "may not forward WebSockets"
)
_PENDING_SECONDS = 0.03  #: Maximum wait while messages are pending.
_IDLE_SECONDS = 1.0  #: Maximum wait while no messages are pending.


class EventsHandler(WebSocketMixin, WebSocketHandler, Handler):
    """A page's WebSocket: the page sends a Subscription, which replaces the previous one, and receives messages."""

    _send_task: asyncio.Task[None] | None = None
    _subscriber: Subscriber

    @web.authenticated
    async def get(self) -> None:  # type: ignore[override]  # Tornado awaits it
        """Open a WebSocket."""
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPError(426, _NO_UPGRADE)
        await WebSocketHandler.get(self)

    def open(self) -> None:
        """Start sending messages."""
        WebSocketMixin.open(self)
        # Some browsers omit this header, and JupyterHub then logs a warning whenever it identifies the user.
        self.request.headers.setdefault("Sec-Fetch-Mode", "websocket")
        self._notify = asyncio.Event()
        self._subscriber = Subscriber(self.app.feeds, Subscription(), self._notify)
        self.app.feeds.pages.add(self)
        self._send_task = asyncio.ensure_future(self._send_messages())

    def on_message(self, message: str | bytes) -> None:
        """Replace the current subscription."""
        try:
            subscription = from_json(Subscription, message.encode() if isinstance(message, str) else message)
        except InvalidSpec as error:
            self.write_message(encode(SubscriptionError(to_api_error(error, 400), "refused")))
            self.close(_POLICY_VIOLATION, "The subscription was rejected.")
            return
        self._subscriber.close()
        if self in self.app.feeds.pages:  # a message may be handled after the connection was closed
            self._subscriber = Subscriber(self.app.feeds, subscription, self._notify)
            self._notify.set()

    def on_close(self) -> None:
        """Stop sending messages."""
        if self._send_task is not None:
            self._send_task.cancel()
            self._send_task = None  # the task refers to this handler
            self._subscriber.close()
        self.app.feeds.pages.discard(self)

    async def _send_messages(self) -> None:
        next_check = time.monotonic() + self.app.keep_alive_seconds
        try:
            while True:
                messages = await self._subscriber.take_messages()
                if time.monotonic() >= next_check:
                    next_check = time.monotonic() + self.app.keep_alive_seconds
                    if not await self._is_still_allowed():
                        self.close(_POLICY_VIOLATION, "You no longer have permission to view this page.")
                        return
                    messages.append(encode(Heartbeat(time.time(), "alive")))
                # Wait until they are sent: a slow page delays only its own messages.
                await asyncio.gather(*(self.write_message(message) for message in messages))
                messages.clear()  # a job list can take megabytes
                await self._subscriber.wait(max(0.0, next_check - time.monotonic()))
        except WebSocketClosedError:
            return
        except Exception:
            self.log.exception("WebSocket send failed; the client will reconnect.")
            self.close()

    async def _is_still_allowed(self) -> bool:
        """Authenticate the user again and return whether they still have the permission to read."""
        handler = Handler(self.application, self.request)
        user = await ensure_async(self.identity_provider.get_user(handler))
        return user is not None and await handler.is_allowed(user, "read")


class Subscriber:
    """The subscription of one page. Call ``take_messages`` whenever ``wait`` returns, and ``close`` at the end.

    ``notify`` is set whenever there may be new messages.
    """

    def __init__(self, feeds: Feeds, subscription: Subscription, notify: asyncio.Event) -> None:
        self._run, self._notify = feeds.app.run, notify
        #: Messages that do not come from a feed.
        self._pending = [encode(Welcome(subscription.number, feeds.server_id, time.time(), "hello"))]
        snapshots: list[tuple[SnapshotFeed, str]] = []
        if subscription.jobs:
            snapshots.append((feeds.get(ListFeed), subscription.jobs_key))
        if subscription.clusters:
            snapshots.append((feeds.get(ClustersFeed), subscription.clusters_key))
        #: The key and the value that the page has, for each feed.
        self._snapshots = {feed: (key, feed.value if key == feed.key else None) for feed, key in snapshots}
        jobs = {feeds.get(JobFeed, id_): request for id_, request in subscription.job.items()}
        self._jobs = [JobSubscriber(feed.live, request) for feed, request in jobs.items()]
        self._feeds: list[Feed] = [*self._snapshots, *jobs]
        for feed in self._feeds:
            feed.subscribers.add(notify)

    def close(self) -> None:
        """Unsubscribe from all feeds."""
        for feed in self._feeds:
            feed.subscribers.discard(self._notify)

    async def take_messages(self) -> list[bytes]:
        """Return the messages that are due now."""
        self._notify.clear()
        messages, self._pending = self._pending, []
        for feed, (key, value) in self._snapshots.items():
            if feed.key not in ("", key):
                messages.append(encode(feed.create_message(value)))
                self._snapshots[feed] = feed.key, feed.value
        for subscriber in self._jobs:
            if subscriber.has_updates:
                messages += await self._run(subscriber.take_messages)
        return messages

    async def wait(self, seconds: float) -> None:
        """Wait until there may be new messages, but at most ``seconds``."""
        has_pending = any(subscriber.has_pending for subscriber in self._jobs)
        timeout = min(seconds, _PENDING_SECONDS if has_pending else _IDLE_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._notify.wait(), timeout)

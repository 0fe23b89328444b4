"""Where messages about jobs go, over HTTP. No answer holds the address of a webhook, only its host."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from distdl_jupyter.monitoring.webhook import Notifications, notifications
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.views.wire import Request

__all__ = ["NotificationsChange", "NotificationsOfUser", "TestNotification"]


class NotificationsChange(Request, frozen=True):
    """What to change; null leaves it as it is, "" takes it back."""

    webhook: (
        Annotated[str, Meta(description="Webhook address of Slack, Teams, ntfy or any service that accepts JSON.")]
        | None
    ) = None
    notify: Annotated[str, Meta(description="Events to report: end, failure, stall, nan, rule.")] | None = None


class NotificationsOfUser(Handler):
    """Where messages go."""

    @answers(Notifications)
    async def get(self) -> Notifications:
        """Return where messages about jobs are sent, and for which events."""
        return await self.run_in_thread(notifications)

    @answers(Notifications, body=NotificationsChange)
    async def patch(self, body: NotificationsChange) -> Notifications:
        """Change where messages are sent, or for which events."""
        return await self.run_in_thread(lambda: notifications(body.webhook, body.notify))


class TestNotification(Handler):
    """A message to try it."""

    @answers(Notifications, refuses=(400, 502))
    async def post(self) -> Notifications:
        """Send a message now."""
        return await self.slowly(lambda: notifications(test=True))

"""The streams that are open on this server, and what they watch together."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from distdl_jupyter.server.subscriber import Subscriber
from distdl_jupyter.server.watching import Watching

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp
    from distdl_jupyter.server.messages import Subscription


class Streams:
    """All open streams. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        #: Another one for each process of the server.
        self.boot = secrets.token_hex(8)
        self.watching = Watching(app)
        self._open: set[asyncio.Event] = set()
        self._stopped = False

    def subscriber(self, wanted: Subscription) -> Subscriber:
        """Return the place of a page in what it wants to be told."""
        return Subscriber(self.watching, self.boot, wanted)

    @property
    def count(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def opened(self, closed: asyncio.Event) -> None:
        """Count a stream; ``closed`` is set when the server stops."""
        self._open.add(closed)
        if self._stopped:
            closed.set()

    def left(self, closed: asyncio.Event) -> None:
        """Count a stream no more."""
        self._open.discard(closed)

    async def stop(self) -> None:
        """End all streams and everything that is read for them."""
        self._stopped = True
        for closed in self._open:
            closed.set()
        self.watching.stop()
        await asyncio.sleep(0)

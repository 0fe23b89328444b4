"""The bytes of an agent that is reached through files (``node.folder``), and any other file that grows, as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import folder, frames
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.folder import Follower

#: Seconds after the end of a job in which the last that was written on a node may still become visible here.
GRACE_SECONDS = 3.0
#: Seconds between two looks whether what was sent has been read.
_PAUSE = 0.2
#: Seconds in which an agent reads what an earlier supervisor has sent.
_TAKEOVER_SECONDS = 60.0


class Tail:
    """What is appended to a file, until some seconds after ``is_over`` says so."""

    def __init__(self, path: Path, is_over: Callable[[], object], position: int = 0) -> None:
        self._file = Follower(path, position)
        self._is_over = is_over
        self._over_since = math.inf
        self._stopping = False

    async def read(self) -> bytes:
        """Return what comes next, b"" at the end."""
        while True:
            with contextlib.suppress(OSError):  # a file server that is away comes back
                if content := self._file.read():
                    self._file.took(len(content))
                    return content
            if self._is_over():
                self._over_since = min(self._over_since, time.monotonic())
            if self._stopping or time.monotonic() - self._over_since > GRACE_SECONDS:
                return b""
            await asyncio.sleep(self._file.pause)

    def stop(self) -> None:
        """Return what is there and then the end."""
        self._stopping = True

    def open_stream(self) -> Inbox:
        """Return an inbox that gets what comes."""
        inbox = Inbox()
        asyncio.run_coroutine_threadsafe(self._feed(inbox), wire.loop())
        return inbox

    async def _feed(self, inbox: Inbox) -> None:
        while content := await self.read():
            inbox.feed(content)
            while inbox.behind:  # noqa: ASYNC110  a thread reads it
                await asyncio.sleep(_PAUSE)
        inbox.feed(b"")


class FolderLink(wire.Link):
    """The link to the agent of one node. ``why_lost`` says why the node is gone, "" while it is there.

    With ``takeover`` an earlier supervisor has begun; what it had sent is read by the agent first. Raises LaunchFailed.
    What the agent prints goes to the job's own output, and its exit code is the batch system's affair.
    """

    beat_seconds = folder.BEAT_SECONDS
    #: The batch system says when a node is lost; a file server may be away for minutes.
    silence_seconds = math.inf

    def __init__(self, run: Path, node: int, why_lost: Callable[[], str], *, takeover: bool = False) -> None:
        super().__init__()
        inbox, read, outbox = folder.files(node)
        self._inbox, self._read = run / inbox, run / read
        self._why_lost = why_lost
        #: Bytes that were sent to the agent so far, by an earlier supervisor too.
        self.sent = self._await_reader() if takeover else 0
        self._tail = Tail(run / outbox, why_lost)

    async def open(self) -> None:
        """Forget what was read."""
        self._forgetting = asyncio.create_task(self._forget())

    def _await_reader(self) -> int:
        """Wait until the agent has read all whole frames, cut off half a one, and return where the next one goes."""
        until = time.monotonic() + _TAKEOVER_SECONDS
        while True:
            at = self._count_read()
            with self._inbox.open("rb+") as file:
                file.seek(at)
                if not frames.whole(file.read()):
                    file.truncate(at)
                    return at
            if self._why_lost():
                return self._inbox.stat().st_size  # nobody reads it any more; what it has said can still be read
            if time.monotonic() > until:
                raise LaunchFailed(
                    f"The agent does not read its messages from {self._inbox}.",
                    code="agent-not-reading",
                    hint="Check that the nodes and this machine see the same files in that folder, and submit the "
                    "job again.",
                )
            time.sleep(_PAUSE)

    def _count_read(self) -> int:
        try:
            return int(self._read.read_text(encoding="ascii") or 0)
        except (OSError, ValueError):
            return 0

    async def read(self) -> bytes:
        """Return what the agent has written next."""
        return await self._tail.read()

    async def write(self, content: bytes) -> None:
        """Append what is to be sent."""
        await self._put(self.sent, content)
        self.sent += len(content)

    async def _put(self, at: int, content: bytes) -> None:
        """Write bytes at a place of the file; the job goes on while the disk is full or the file server is away."""
        while content and not self._why_lost():
            try:
                descriptor = os.open(self._inbox, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    count = os.pwrite(descriptor, content, at)
                finally:
                    os.close(descriptor)
                at, content = at + count, content[count:]
            except OSError:
                await asyncio.sleep(_PAUSE)

    async def _forget(self) -> None:
        """Overwrite what was read: it may hold what nobody else should see."""
        forgotten = 0
        while True:
            await asyncio.sleep(_PAUSE)
            if forgotten < self.sent and (read := min(self._count_read(), self.sent)) > forgotten:
                await self._put(forgotten, bytes(read - forgotten))
                forgotten = read

    def close_input(self) -> None:
        """Send no more, and listen to nothing more; idempotent."""
        self._forgetting.cancel()
        self._tail.stop()

    async def end(self, grace: float = 0.0) -> None:
        """Do nothing: the batch system takes the agent away."""

    async def why_ended(self, silent: float) -> str:
        """Return why nothing more comes."""
        return self._why_lost() or "The agent has ended."

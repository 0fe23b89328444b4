"""Links to agents that communicate through files (``node.folder``), and streams of growing files."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import channels, folder
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.folder import FileFollower

#: Seconds after the end of a job until its last writes on a node are visible here.
GRACE_SECONDS = 3.0
#: Seconds between two polls of the agent's read position.
_POLL_SECONDS = 0.2
#: Timeout in seconds for an agent to read the messages of an earlier supervisor.
_TAKEOVER_SECONDS = 60.0


class Tail:
    """The stream of bytes appended to a file. It ends ``GRACE_SECONDS`` after ``is_over`` returns true."""

    def __init__(self, path: Path, is_over: Callable[[], object], position: int = 0) -> None:
        self._follower = FileFollower(path, position)
        self._is_over = is_over
        self._over_since = math.inf
        self._is_stopping = False

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        while True:
            with contextlib.suppress(OSError):  # the file server may be temporarily unavailable
                if content := self._follower.read():
                    self._follower.advance(len(content))
                    return content
            if self._is_over():
                self._over_since = min(self._over_since, time.monotonic())
            if self._is_stopping or time.monotonic() - self._over_since > GRACE_SECONDS:
                return b""
            await asyncio.sleep(self._follower.pause)

    def stop(self) -> None:
        """End the stream after the bytes that are in the file now."""
        self._is_stopping = True

    def open_stream(self) -> Inbox:
        """Return an inbox that receives the stream."""
        inbox = Inbox()

        async def feed() -> None:
            while content := await self.read():
                inbox.feed(content)
                while inbox.is_behind:  # noqa: ASYNC110  a thread reads it
                    await asyncio.sleep(_POLL_SECONDS)
            inbox.feed(b"")

        asyncio.run_coroutine_threadsafe(feed(), wire.get_loop())
        return inbox


class FolderLink(Tail, wire.Link):
    """The link to the agent of one node. ``explain_loss`` returns the reason if the node is lost, else "".

    With ``takeover``, wait until the agent has read the messages of an earlier supervisor. Raises LaunchFailed.
    """

    beat_seconds = folder.BEAT_SECONDS
    #: The batch system reports lost nodes; a file server may be unavailable for minutes.
    max_idle_seconds = math.inf

    def __init__(self, run: Path, node: int, explain_loss: Callable[[], str], *, takeover: bool = False) -> None:
        wire.Link.__init__(self)
        inbox, position_file, outbox = folder.get_file_names(node)
        Tail.__init__(self, run / outbox, explain_loss)
        self._inbox_path, self._position_path = run / inbox, run / position_file
        self._explain_loss = explain_loss
        #: The number of bytes sent to the agent, including those of earlier supervisors.
        self.sent_bytes = self._await_reader() if takeover else 0

    async def open(self) -> None:
        """Start erasing messages that the agent has read."""
        self._erase_task = asyncio.create_task(self._erase_read())

    def _await_reader(self) -> int:
        """Wait until the agent has read all complete frames, truncate an incomplete one, and return the position."""
        deadline = time.monotonic() + _TAKEOVER_SECONDS
        while True:
            position = self._read_position()
            with self._inbox_path.open("rb+") as file:
                file.seek(position)
                if not channels.measure_complete(file.read()):
                    file.truncate(position)
                    return position
            if self._explain_loss():
                return self._inbox_path.stat().st_size  # the node is lost, but its output can still be read
            if time.monotonic() > deadline:
                text = f"The agent does not read its messages from {self._inbox_path}."
                hint = "Check that the nodes and this machine see the same files in that folder. Submit the job again."
                raise LaunchFailed(text, code="agent-not-reading", hint=hint)
            time.sleep(_POLL_SECONDS)

    def _read_position(self) -> int:
        """Return the number of bytes that the agent has read."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._position_path.read_text(encoding="ascii"))
        return 0

    async def write(self, content: bytes) -> None:
        """Append bytes for the agent."""
        await self._write_at(self.sent_bytes, content)
        self.sent_bytes += len(content)

    async def _write_at(self, position: int, content: bytes) -> None:
        """Write bytes at a position; retry while the disk is full or the file server is unavailable."""
        while content and not self._explain_loss():
            try:
                with self._inbox_path.open("rb+", buffering=0) as file:
                    file.seek(position)
                    count = file.write(content)
                position, content = position + count, content[count:]
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)

    async def _erase_read(self) -> None:
        """Overwrite bytes that the agent has read, because they may contain secrets."""
        erased = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if erased < self.sent_bytes and (position := min(self._read_position(), self.sent_bytes)) > erased:
                await self._write_at(erased, bytes(position - erased))
                erased = position

    def close_input(self) -> None:
        """Stop sending and reading; idempotent."""
        self._erase_task.cancel()
        self.stop()

    async def end(self, grace: float = 0.0) -> None:
        """Do nothing: the batch system ends the agent."""

    async def explain_end(self, idle_seconds: float) -> str:
        """Return why the output ended."""
        return self._explain_loss() or "The agent has ended."

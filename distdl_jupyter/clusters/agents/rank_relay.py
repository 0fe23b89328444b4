"""Local sockets that relay to persistent ranks on other hosts, so that a kernel connects to all ranks the same way.

Each connection is a channel of the agent on the rank's host, which forwards the bytes to the rank's own socket there.
The relay does not parse the bytes; the rank checks its token, which is stored in the job's private folder. The relay
applies backpressure: when a few MiB are buffered on either host, it stops reading from the sender. It runs on the event
loop of the links (``wire``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import run_dir
from distdl_jupyter.worker.rank_socket import NOTES, listening, note_of, peer_uid, write_note

#: The maximum number of bytes per read; the number of bytes buffered for a kernel above which its rank must pause.
_PIECE, _MOST = 1024 * 1024, 4 * 1024 * 1024


class RankRelay:
    """The local sockets of one run, in a private folder. Raises OSError."""

    def __init__(self, folder: JobFolder) -> None:
        self._notes = folder.path / NOTES
        self._folder = run_dir.make(folder.id, "rank-00000.sock")
        self._lifeline = run_dir.lifeline(self._folder)
        self._servers: list[asyncio.Server] = []

    def offer(
        self, connection: Connection, rank: int, answer: Future[dict[str, Any]], failed: Callable[[OSError], None]
    ) -> None:
        """Create a rank's socket, then its note, once its host has reported the rank's address.

        ``failed`` is called on the event loop with an OSError.
        """
        answer.add_done_callback(
            lambda completed: asyncio.run_coroutine_threadsafe(
                self._offer(connection, rank, completed, failed), wire.loop()
            )
        )

    async def _offer(
        self, connection: Connection, rank: int, answer: Future[dict[str, Any]], failed: Callable[[OSError], None]
    ) -> None:
        with contextlib.suppress(DistDLError):  # the host is lost or the rank has ended, which is reported elsewhere
            note = answer.result()
            path = self._folder / f"rank-{rank}.sock"
            carry = functools.partial(self._carry, connection, rank)
            try:
                self._servers.append(await asyncio.start_unix_server(carry, sock=listening(path), limit=_PIECE))
                write_note(note_of(self._notes, rank), {**note, "socket": str(path)})
            except OSError as error:
                failed(error)

    async def _carry(
        self, connection: Connection, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Relay one connection of this user to a rank until either end closes it."""
        if peer_uid(writer.get_extra_info("socket")) != os.getuid():
            writer.close()
            return

        writer.transport.set_write_buffer_limits(_MOST)
        can_send = asyncio.Event()
        can_send.set()
        drain_tasks: set[asyncio.Task[None]] = set()

        def send(content: bytes) -> None:
            if not content:
                can_send.set()
                writer.close()
                return
            writer.write(content)
            if not drain_tasks and writer.transport.get_write_buffer_size() > _MOST:
                drain_tasks.add(asyncio.get_running_loop().create_task(pause_rank()))

        async def pause_rank() -> None:
            """Pause the rank's output until the kernel has read the buffer."""
            connection.begin("hold", channel=channel, held=True)
            with contextlib.suppress(OSError):  # the kernel has disconnected; the rank's connection is closed below
                await writer.drain()
            drain_tasks.clear()
            connection.begin("hold", channel=channel, held=False)

        def connected(answer: Future[dict[str, Any]]) -> None:
            if answer.exception() is not None:
                wire.loop().call_soon_threadsafe(writer.close)

        channel = connection.channel(send, lambda held: can_send.clear() if held else can_send.set())
        connection.begin("connect", rank=rank, channel=channel).add_done_callback(connected)
        with contextlib.suppress(OSError, DistDLError):  # the kernel was killed, or the host is lost
            while content := await reader.read(_PIECE):
                await asyncio.to_thread(connection.write, channel, content)
                await can_send.wait()
        with contextlib.suppress(DistDLError):
            connection.write(channel, b"", wait=False)  # the rank then closes its end, and ``send`` gets b""

    def close(self) -> None:
        """Stop listening and remove the folder; relayed connections end with the connections to the agents."""
        for server in self._servers:
            wire.loop().call_soon_threadsafe(server.close)
        os.close(self._lifeline)
        run_dir.remove(self._folder)

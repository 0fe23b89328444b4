"""Sockets on this machine that lead to ranks which stay on others: a kernel speaks to them as to ranks here.

Each connection is a channel of the agent on the rank's host, which passes its bytes to the rank's own socket there.
What they say is not looked at: the rank knows its token, which goes into the job's private folder. Who sends faster
than the other end reads waits: some MiB are kept here and on the rank's host, and the rest is not read. All of it runs
on the loop of the links (``wire``).
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
from distdl_jupyter.worker.serving.connection import NOTES, listening, note_of, peer_uid, write_note

#: Bytes that are carried at once at most, and that wait for a kernel before its rank waits too.
_PIECE, _MOST = 1024 * 1024, 4 * 1024 * 1024


class RankRelay:
    """The sockets of one run, in a private folder of this machine. Raises OSError."""

    def __init__(self, folder: JobFolder) -> None:
        self._notes = folder.path / NOTES
        self._folder = run_dir.make(folder.id, "rank-00000.sock")
        self._lifeline = run_dir.lifeline(self._folder)
        self._servers: list[asyncio.Server] = []

    def offer(
        self, connection: Connection, rank: int, answer: Future[dict[str, Any]], failed: Callable[[OSError], None]
    ) -> None:
        """Make a rank's socket, and then its note, when its host has reported its address.

        ``failed`` is called on the loop with the error.
        """
        answer.add_done_callback(
            lambda completed: asyncio.run_coroutine_threadsafe(
                self._offer(connection, rank, completed, failed), wire.loop()
            )
        )

    async def _offer(
        self, connection: Connection, rank: int, answer: Future[dict[str, Any]], failed: Callable[[OSError], None]
    ) -> None:
        with contextlib.suppress(DistDLError):  # the host is gone, or the rank has ended: its end is told elsewhere
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
        """Carry one connection of this user to a rank, until either end hangs up."""
        if peer_uid(writer.get_extra_info("socket")) != os.getuid():
            writer.close()
            return

        writer.transport.set_write_buffer_limits(_MOST)
        room = asyncio.Event()
        room.set()
        holding: set[asyncio.Task[None]] = set()

        def send(content: bytes) -> None:
            if not content:
                room.set()
                writer.close()
                return
            writer.write(content)
            if not holding and writer.transport.get_write_buffer_size() > _MOST:
                holding.add(asyncio.get_running_loop().create_task(hold()))

        async def hold() -> None:
            """Leave what the rank says with it until the kernel has taken what is here."""
            connection.begin("hold", channel=channel, held=True)
            with contextlib.suppress(OSError):  # the kernel is gone, which the rank is told
                await writer.drain()
            holding.clear()
            connection.begin("hold", channel=channel, held=False)

        def connected(answer: Future[dict[str, Any]]) -> None:
            if answer.exception() is not None:
                wire.loop().call_soon_threadsafe(writer.close)

        channel = connection.channel(send, lambda held: room.clear() if held else room.set())
        connection.begin("connect", rank=rank, channel=channel).add_done_callback(connected)
        with contextlib.suppress(OSError, DistDLError):  # the kernel was killed, or the host is gone
            while content := await reader.read(_PIECE):
                await asyncio.to_thread(connection.write, channel, content)
                await room.wait()
        with contextlib.suppress(DistDLError):
            connection.write(channel, b"", wait=False)  # the rank hangs up then, which ``send`` is told

    def close(self) -> None:
        """Listen no more, and take the folder away; connections end with those of the agents."""
        for server in self._servers:
            wire.loop().call_soon_threadsafe(server.close)
        os.close(self._lifeline)
        run_dir.remove(self._folder)

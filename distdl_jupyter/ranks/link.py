"""A connection to one rank: found by the note in the job's private folder, used only when the same user answers."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import sockets
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.worker.serving.frames import Message, Reader, encode
from distdl_jupyter.worker.serving.listener import NOTES, note_of

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder

#: Seconds within which a rank's other threads must answer; its own code may hold Python's lock that long.
_TIMEOUT = 60.0
_READ = 1024 * 1024


class Gone(ConnectionError):
    """The rank does not answer at all: its process has ended, or is ending."""


class Link:
    """One rank at the other end. ``doing`` is what it ran when the link was made ("": nothing)."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.doing = ""
        self._socket = connection
        self._reader = Reader()
        self._sending = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the other end has not hung up, as far as is known here."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, header: dict[str, Any], body: bytes | bytearray | memoryview = b"") -> None:
        """Send a message. Raises Gone."""
        try:
            with self._sending:
                for piece in encode(header, body):
                    self._socket.sendall(piece)
        except OSError as error:
            raise Gone(f"Rank {self.rank} is gone.") from error

    def receive(self) -> list[Message]:
        """Read once and return the messages that are whole now. Raises Gone at the rank's end."""
        try:
            data = self._socket.recv(_READ)
        except OSError as error:
            raise Gone(f"Rank {self.rank} is gone.") from error
        if not data:
            raise Gone(f"Rank {self.rank} is gone.")
        return self._reader.feed(data)

    def close(self) -> None:
        """Hang up; what the rank runs goes on."""
        self._socket.close()

    def __del__(self) -> None:
        self.close()  # a handle that nobody holds any more needs no connection


def linked(folder: JobFolder, rank: int) -> Link:
    """Return a link to a rank. Raises Gone when it does not listen, DistDLError when somebody else does."""
    try:
        note = json.loads(note_of(folder.path / NOTES, rank).read_text(encoding="utf-8"))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise Gone(f"Rank {rank} is not listening.") from error
    link = Link(rank, connection)
    try:
        connection.settimeout(_TIMEOUT)
        connection.connect(str(note["socket"]))
        _check_own(connection, str(note["socket"]))
        _greet(link, str(note["token"]))
        connection.settimeout(None)
    except BaseException as error:
        link.close()
        if isinstance(error, OSError) and not isinstance(error, Gone):
            raise Gone(f"Rank {rank} is gone.") from error
        raise
    return link


def _check_own(connection: socket.socket, path: str) -> None:
    if sockets.peer_uid(connection) != os.getuid():
        raise DistDLError(
            f"Another process is listening at {path}.",
            code="ranks-socket-taken",
            hint="Set JUPYTER_RUNTIME_DIR to a folder that belongs to you.",
        )


def _greet(link: Link, token: str) -> None:
    link.send({"do": "hello", "token": token})
    while not (found := link.receive()):
        pass
    link.doing = str(found[0].header.get("doing") or "")

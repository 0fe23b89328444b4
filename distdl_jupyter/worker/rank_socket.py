"""Connections between a client and a persistent rank: their messages, and the rank's listening socket.

A message is a header, which is JSON, and a body, usually a pickle, which is loaded only if the peer is authenticated.
Both are sent as in ``multiprocessing.connection``, after their lengths.

The rank listens in the run's private folder on its host. A note next to the socket contains its path and token. The
host's agent passes the note to the supervisor, which writes it to the job's folder (``NOTES``). Other users are denied
access by the modes of the folder (0700) and the socket (0600), by a check of the peer's user id, and by the token,
which is stored only in private folders.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import secrets
import socket
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.worker import owned

#: Subfolder of a job's folder with the notes of its ranks.
NOTES = "serving"
#: Maximum size in bytes of a header, which can contain errors with frames and images of values, and of a handshake.
MAX_HEADER_BYTES, _MAX_HANDSHAKE_BYTES = 64 * 1024 * 1024, 4096
#: Maximum size of a body in bytes.
MAX_BODY_BYTES = 64 * 1024 * 1024 * 1024
#: Timeout in seconds for a client to send the token, and maximum number of connections that are not accepted yet.
_HANDSHAKE_SECONDS, _BACKLOG = 10.0, 16


class ConnectionLost(ConnectionError):
    """The peer has closed the connection or sent an invalid message, or its process has exited."""


class RankMessage(NamedTuple):
    """A message with its decoded header."""

    header: dict[str, Any]
    body: bytes = b""


class MessageConnection:
    """One end of a connection. It sends and receives complete messages."""

    def __init__(self, endpoint: socket.socket) -> None:
        from multiprocessing.connection import Connection  # lazy: a job whose ranks end with it has no connections

        endpoint.settimeout(None)
        self._connection = Connection(endpoint.detach())

    def fileno(self) -> int:
        """Return the file descriptor, for use with a selector."""
        return self._connection.fileno()

    def is_readable(self, timeout: float = 0.0) -> bool:
        """Return whether the peer sends something or closes the connection within ``timeout`` seconds."""
        return self._connection.poll(timeout)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send a message. Raises ConnectionLost."""
        try:
            self._connection.send_bytes(json.dumps(header, separators=(",", ":")).encode())
            self._connection.send_bytes(body)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, max_header_bytes: int = MAX_HEADER_BYTES, max_body_bytes: int = MAX_BODY_BYTES) -> RankMessage:
        """Wait for a message and return it. Raises ConnectionLost."""
        try:
            header = json.loads(self._connection.recv_bytes(max_header_bytes))
            body = self._connection.recv_bytes(max_body_bytes)
        except (OSError, EOFError, ValueError) as error:
            raise ConnectionLost(str(error)) from error
        if not isinstance(header, dict):
            raise ConnectionLost("A message has no JSON header.")
        return RankMessage(header, body)

    def close(self) -> None:
        """Close the connection. Code that runs in the rank is not interrupted."""
        with contextlib.suppress(OSError):
            self._connection.close()


class ServedConnection(MessageConnection):
    """The rank's end of a connection, with a thread for requests (``on_message``) and another one for replies."""

    def __init__(
        self,
        endpoint: socket.socket,
        listener: Listener,
        on_message: Callable[[ServedConnection, RankMessage], None],
    ) -> None:
        super().__init__(endpoint)
        self._listener = listener
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[RankMessage | None] = queue.SimpleQueue()
        _connections.add(self)
        for target in (self._read, self._write):
            threading.Thread(target=target, name="distdl-serving", daemon=True).start()

    def reply(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queue a message for the client. It is dropped if the connection is closed."""
        self._outbox.put(RankMessage(header, body))

    def _read(self) -> None:
        try:
            with contextlib.suppress(ConnectionLost):
                has_sent = self.is_readable(_HANDSHAKE_SECONDS)
                if has_sent and self._listener.accepts((handshake := self.receive(_MAX_HANDSHAKE_BYTES, 0)).header):
                    self._on_message(self, handshake)
                    while True:
                        self._on_message(self, self.receive())
        finally:
            self._outbox.put(None)

    def _write(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while (message := self._outbox.get()) is not None:
                self.send(*message)
        self.close()


_connections: weakref.WeakSet[ServedConnection] = weakref.WeakSet()


def _close_all() -> None:
    """Close the inherited connections in a forked child. Open copies would hide the rank's exit from the clients."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_all)


class Listener:
    """The listening socket of one rank. Raises PermissionError, OSError."""

    def __init__(self, run: Path, rank: int) -> None:
        self.path = run / f"rank-{rank}.sock"
        self._note = find_note(run, rank)
        self._token = secrets.token_urlsafe(32)
        self.socket = open_listener(self.path)
        write_note(self._note, {"socket": str(self.path), "token": self._token, "rank": rank, "pid": os.getpid()})
        os.register_at_fork(after_in_child=self.socket.close)

    def accept(self) -> socket.socket:
        """Return the next connection from this user. Connections from other users are closed without reading."""
        while True:
            connection = self.socket.accept()[0]
            with contextlib.suppress(OSError):
                if read_uid(connection) == os.getuid():
                    return connection
            connection.close()

    def accepts(self, handshake: dict[str, Any]) -> bool:
        """Return whether a handshake has the rank's token."""
        token = handshake.get("token") if handshake.get("do") == "hello" else None
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())

    def close(self) -> None:
        """Remove the note and the socket's path."""
        for path in (self._note, self.path):
            with contextlib.suppress(OSError):
                path.unlink()


def read_uid(connection: socket.socket) -> int:
    """Return the user id of the peer of a Unix socket, as the operating system reports it."""
    if sys.platform == "darwin":
        # struct xucred: version, uid, ...; SOL_LOCAL is 0 and LOCAL_PEERCRED 1 (sys/un.h).
        return int(struct.unpack("II", connection.getsockopt(0, 1, 76)[:8])[1])
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def find_note(folder: Path, rank: int) -> Path:
    """Return the path of a rank's note in a folder. The file exists while the rank listens."""
    return folder / f"rank-{rank}.json"


def open_listener(path: Path) -> socket.socket:
    """Return a socket that listens in a private folder of this user (mode 0700). Raises PermissionError, OSError."""
    status = path.parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
        raise PermissionError(f"{path.parent} is not a private folder of its owner, so the rank does not listen there.")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def write_note(path: Path, data: dict[str, Any]) -> None:
    """Write a note atomically."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    owned.write(path, json.dumps(data).encode())

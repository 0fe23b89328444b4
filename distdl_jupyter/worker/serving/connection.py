"""One connection of a rank: a thread that reads what is asked, and one that sends what is answered.

Neither ever makes the rank's own code wait: what the other end does not read waits here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from distdl_jupyter.worker.serving import frames
from distdl_jupyter.worker.serving.listener import Door

OnMessage = Callable[["Line", frames.Message], None]
_READ = 1024 * 1024
#: Seconds in which the other end has to say who it is.
_GREETING_TIMEOUT = 10.0


class Line:
    """A connection whose other end is the same user; ``on_message`` is called for each message behind the token."""

    def __init__(self, connection: socket.socket, door: Door, greeting: dict[str, Any], on_message: OnMessage) -> None:
        self._connection = connection
        self._door = door
        self._greeting = greeting
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        #: Messages in the outbox that are not sent completely.
        self._waiting = 0
        self.open = True
        _lines.add(self)

    def start(self) -> None:
        """Begin to read and to send."""
        for work in (self._read, self._send):
            threading.Thread(target=work, name="distdl-serving", daemon=True).start()

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send a message as soon as the other end reads; nothing happens when it is gone."""
        pieces = frames.encode(header, body)
        with self._sending:
            if self.open and (self._waiting or not self._sent_at_once(pieces)):
                self._waiting += 1
                self._outbox.put(pieces)

    def _sent_at_once(self, pieces: list[Any]) -> bool:
        """Send a short message from here when there is room for it, which spares another thread's turn."""
        try:
            if len(pieces) > 1:
                return False
            sent = self._connection.send(pieces[0], socket.MSG_DONTWAIT)
        except OSError:  # no room, or the other end is gone, which the thread that reads hears of
            return False
        pieces[0] = pieces[0][sent:]
        return not pieces[0]

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError, frames.Broken):
                self._connection.settimeout(_GREETING_TIMEOUT)
                reader = frames.Reader(strict=True)
                self._admit(reader)
                data = b""
                while True:
                    for message in reader.feed(data):
                        self._on_message(self, message)
                    if not (data := self._connection.recv(_READ)):
                        return
        finally:
            self.open = False
            self._outbox.put(None)

    def _admit(self, reader: frames.Reader) -> None:
        """Wait for the token and answer it. Raises Broken for anything else."""
        found: list[frames.Message] = []
        while not found:
            data = self._connection.recv(4096)
            if not data:
                raise frames.Broken("No message was received.")
            found = reader.feed(data)
        if found[0].header.get("do") != "hello" or not self._door.knows(found[0].header.get("token")):
            raise frames.Broken("The other end sent a wrong token.")
        reader.strict = False
        self._connection.settimeout(None)
        self.say(self._greeting)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (pieces := self._outbox.get()) is not None:
                for piece in pieces:
                    self._connection.sendall(piece)
                with self._sending:
                    self._waiting -= 1
        self.open = False
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def forget(self) -> None:
        """Close a forked child's copy: one that stays open would hide this process's end from the other side."""
        with contextlib.suppress(OSError):
            self._connection.close()


_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def _forget_all() -> None:
    for line in list(_lines):
        line.forget()


os.register_at_fork(after_in_child=_forget_all)

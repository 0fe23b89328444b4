"""The agent's end of the relay: what Open MPI here wants to run on another host, and what came of it.

``shell.py`` is the program that Open MPI starts as its remote shell. It says over a socket what it was asked for; the
supervisor has that done on the other host and answers.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.node.channels import Outgoing

_LONGEST = 1024 * 1024


class Shells:
    """All relays of this host. ``send`` sends a message to the supervisor."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._selector = selector
        self._send = send
        self._relays: dict[int, socket.socket] = {}
        self._answers: dict[int, Outgoing] = {}
        self._said: dict[int, bytes] = {}
        self._number = 0

    def listen(self, path: Path) -> None:
        """Take relays at this socket from now on. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(128)
        listener.settimeout(0)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            relay, _ = listener.accept()
            relay.settimeout(0)
            number, self._number = self._number, self._number + 1
            self._relays[number], self._said[number] = relay, b""
            self._answers[number] = Outgoing(relay.dup(), self._selector, lambda **_: None)
            self._selector.register(relay, selectors.EVENT_READ, lambda: self._read(number))

    def _read(self, number: int) -> None:
        relay = self._relays.get(number)
        if relay is None:
            return
        try:
            content = relay.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        self._said[number] += content
        if not content or len(self._said[number]) > _LONGEST:
            self._close(number)
            self._send("shell-closed", shell=number)
        elif self._said[number].endswith(b"\n"):
            self._on_request(number)

    def _on_request(self, number: int) -> None:
        try:
            request = json.loads(self._said[number])
            host, command = str(request["host"]), str(request["command"])
        except (ValueError, KeyError, TypeError):
            self._close(number)
            return
        self._said[number] = b""
        self._send("shell", shell=number, host=host, command=command)

    def answer(self, number: int, fields: Mapping[str, Any]) -> None:
        """Pass on what the command printed and, with ``code``, its end. A relay that has gone hears nothing."""
        if number not in self._relays:
            return
        said = {name: fields[name] for name in ("out", "err", "code") if fields.get(name) is not None}
        self._answers[number].give(json.dumps(said).encode() + b"\n")
        if "code" in said:
            self._close(number)

    def _close(self, number: int) -> None:
        relay = self._relays.pop(number, None)
        if relay is not None:
            self._selector.unregister(relay)
            relay.close()
            self._answers.pop(number).give(b"")

"""A remote shell for Open MPI on a host with an agent: the program, and the agent's end of its socket.

``python -m distdl_jupyter.node.mpi_shell HOST COMMAND...`` lets the agent run COMMAND on HOST and behaves like
``ssh HOST COMMAND``: it prints the output and exits with the command's exit code, or 255 without a connection.
It needs no second ssh connection, key or host name. The agent forwards the request to the supervisor, which runs the
command on the other host.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.node.channels import SocketWriter
from distdl_jupyter.node.run_dir import SOCKET

#: Maximum length of a request in bytes.
_MAX_REQUEST_BYTES = 1024 * 1024
#: Exit code of ssh when the command could not be run or its exit code is unknown.
NO_CONNECTION = 255


class ShellRelays:
    """All relays of this host; ``send`` sends a message to the supervisor."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._selector = selector
        self._send = send
        #: The relays whose commands run, by number.
        self._relays: dict[int, SocketWriter] = {}
        self._numbers = itertools.count()

    def listen(self, path: Path) -> None:
        """Accept relays at this socket. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(128)
        listener.settimeout(0)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            relay, _ = listener.accept()
            relay.settimeout(0)
            received = bytearray()
            self._selector.register(relay, selectors.EVENT_READ, lambda: self._read(relay, received))

    def _read(self, relay: socket.socket, received: bytearray) -> None:
        """Read a relay's request, one line, and forward it to the supervisor."""
        try:
            content = relay.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        received += content
        if content and len(received) <= _MAX_REQUEST_BYTES and not received.endswith(b"\n"):
            return
        self._selector.unregister(relay)
        try:
            request = json.loads(received)
            host, command = str(request["host"]), str(request["command"])
        except (ValueError, KeyError, TypeError):
            relay.close()
            return
        number = next(self._numbers)
        self._relays[number] = SocketWriter(relay, self._selector, lambda **_: None)
        self._send("shell", shell=number, host=host, command=command)

    def answer(self, number: int, fields: Mapping[str, Any]) -> None:
        """Send the command's output and, with ``code``, its exit code to the relay, if the relay is still running."""
        if number not in self._relays:
            return
        response = {name: fields[name] for name in ("out", "err", "code") if fields.get(name) is not None}
        self._relays[number].feed(json.dumps(response).encode() + b"\n")
        if "code" in response:
            self._relays.pop(number).feed(b"")


def main(arguments: list[str]) -> int:
    """Run one command on another host and return its exit code."""
    host, *command = arguments
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.connect(str(Path(os.environ["DISTDL_PIPES"]) / SOCKET))
            agent.sendall(json.dumps({"host": host, "command": " ".join(command)}).encode() + b"\n")
            for line in agent.makefile("rb"):
                response = json.loads(line)
                for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
                    if text := response.get(name):
                        stream.write(text)
                        stream.flush()
                if "code" in response:
                    return int(response["code"])
        reason = "the agent has exited"
    except (OSError, KeyError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"The relay to {host} failed: {reason}.\n")
    return NO_CONNECTION


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

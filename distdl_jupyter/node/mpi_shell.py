"""A remote shell for Open MPI on a host with an agent: the program, and the agent's end of its socket.

``python -m distdl_jupyter.node.mpi_shell HOST COMMAND...`` lets the agent run COMMAND on HOST and behaves as
``ssh HOST COMMAND``: it prints the output and exits with the command's exit code, or 255 without a connection.
It needs no second ssh connection, key or host name. The agent forwards the request to the supervisor, which runs the
command on the other host.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.node.channels import Outgoing
from distdl_jupyter.node.run_dir import SOCKET

_LONGEST = 1024 * 1024


class Shells:
    """All relays of this host. ``send`` sends a message to the supervisor."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._selector = selector
        self._send = send
        self._relays: dict[int, socket.socket] = {}
        self._answers: dict[int, Outgoing] = {}
        self._received: dict[int, bytes] = {}
        self._number = 0

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
            number, self._number = self._number, self._number + 1
            self._relays[number], self._received[number] = relay, b""
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
        self._received[number] += content
        if not content or len(self._received[number]) > _LONGEST:
            self._close(number)
            self._send("shell-closed", shell=number)
        elif self._received[number].endswith(b"\n"):
            self._on_request(number)

    def _on_request(self, number: int) -> None:
        try:
            request = json.loads(self._received[number])
            host, command = str(request["host"]), str(request["command"])
        except (ValueError, KeyError, TypeError):
            self._close(number)
            return
        self._received[number] = b""
        self._send("shell", shell=number, host=host, command=command)

    def answer(self, number: int, fields: Mapping[str, Any]) -> None:
        """Send the command's output and, with ``code``, its exit code to the relay, if the relay still runs."""
        if number not in self._relays:
            return
        reply = {name: fields[name] for name in ("out", "err", "code") if fields.get(name) is not None}
        self._answers[number].feed(json.dumps(reply).encode() + b"\n")
        if "code" in reply:
            self._close(number)

    def _close(self, number: int) -> None:
        relay = self._relays.pop(number, None)
        if relay is not None:
            self._selector.unregister(relay)
            relay.close()
            self._answers.pop(number).feed(b"")


# the program ---------------------------------------------------------------------------------------


#: Exit code of ssh when the command could not be run or its exit code is unknown.
NO_CONNECTION = 255


def main(arguments: list[str]) -> int:
    """Run one command on another host and return its exit code."""
    if len(arguments) < 2:
        sys.stderr.write("The relay needs a host and a command.\n")
        return NO_CONNECTION
    host, *command = arguments
    try:
        return _relay(host, " ".join(command))
    except (OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"The relay to {host} failed: {type(error).__name__}: {error}.\n")
        return NO_CONNECTION


def _relay(host: str, command: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(str(Path(os.environ["DISTDL_PIPES"]) / SOCKET))
        agent.sendall(json.dumps({"host": host, "command": command}).encode() + b"\n")
        for line in agent.makefile("rb"):
            reply = json.loads(line)
            for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
                if text := reply.get(name):
                    stream.write(text)
                    stream.flush()
            if "code" in reply:
                return int(reply["code"])
    raise ConnectionError("the agent has exited")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

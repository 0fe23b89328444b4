"""Where the ranks of a job meet when a platform has started them and says only where node 0 is.

Rank 0 listens on a port that all know, and tells each of the others the address and the free ports that it has found,
once its services are ready. It tells nothing to whoever does not know the job's nonce.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from distdl_jupyter.node.interfaces import interfaces

#: Seconds that nodes wait for the one of rank 0: it can be the last one that the platform gets ready.
TIMEOUT = 300.0
_STEP = 0.2
#: Seconds in which the others may hear why there is no meeting.
_FAREWELL = 10.0


class RendezvousFailed(Exception):
    """The nodes cannot meet; the message says why in one sentence."""


class Rendezvous(NamedTuple):
    """An address of node 0, the network of that address as "10.0.0.0/24", and free ports there."""

    address: str
    network: str
    ports: tuple[int, ...] = ()


def own_address(target: str) -> str:
    """Return this node's address on its route to ``target``. Raises RendezvousFailed where there is no route."""
    try:
        # Connecting a datagram socket sends nothing: it only asks the kernel for the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RendezvousFailed(f"{os.uname().nodename} has no route to {target}: {error.strerror}.") from error


def interface(address: str) -> str:
    """Return the name of this node's interface that has ``address``, "" when none has."""
    return next((str(one["name"]) for one in interfaces() if one["address"] == address), "")


def network_of(address: str) -> str:
    """Return the network of one of this node's addresses, the address alone when its interface is not found."""
    prefix = next((one["prefix"] for one in interfaces() if one["address"] == address), 32)
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


class Host:
    """Rank 0's side."""

    def __init__(self, port: int, nonce: str, others: int) -> None:
        self._nonce = nonce
        self._others = others
        self._answer = b""
        self._answered = 0
        self._ready = threading.Event()
        self._done = threading.Event()
        try:
            self._socket = socket.create_server(("", port), backlog=max(16, others))
        except OSError as error:
            raise RendezvousFailed(f"Rank 0 cannot listen on the port {port}: {error.strerror}.") from error
        threading.Thread(target=self._serve, name="distdl-rendezvous", daemon=True).start()

    def announce(self, rendezvous: Rendezvous) -> None:
        """Let the others go to the meeting."""
        self._say(rendezvous._asdict())

    def refuse(self, why: str) -> None:
        """Let the others hear why there is none; return when they have, or after some seconds."""
        self._say({"error": why})
        if self._others:
            self._done.wait(_FAREWELL)

    def _say(self, content: dict[str, object]) -> None:
        self._answer = json.dumps(content).encode() + b"\n"
        self._ready.set()

    def _serve(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while self._answered < self._others:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._speak, args=(connection,), daemon=True).start()

    def _speak(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(TIMEOUT)
            if connection.makefile("rb").readline(200).strip() != self._nonce.encode():
                return
            self._ready.wait(TIMEOUT)
            connection.sendall(self._answer)
            self._answered += 1
            if self._answered >= self._others:
                self._done.set()


def join(address: str, port: int, nonce: str, stopped: Callable[[], object], timeout: float = TIMEOUT) -> Rendezvous:
    """Return what rank 0 tells. Raises RendezvousFailed, also when ``stopped`` says so."""
    until = time.monotonic() + timeout
    while not stopped():
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5.0) as connection:
            connection.sendall(nonce.encode() + b"\n")
            if (answer := _line(connection, until, stopped)) is not None:
                return _rendezvous_from(answer)
        if time.monotonic() > until:
            raise RendezvousFailed(f"Rank 0 did not start at {address} within {timeout:g} s.")
        time.sleep(_STEP)
    raise RendezvousFailed("The job was stopped before the ranks connected.")


def _line(connection: socket.socket, until: float, stopped: Callable[[], object]) -> bytes | None:
    """Return rank 0's answer, None when it hung up or time is over."""
    connection.settimeout(_STEP)
    said = b""
    while time.monotonic() < until and not stopped():
        try:
            content = connection.recv(65_536)
        except TimeoutError:
            continue
        if not content:
            return None
        said += content
        if said.endswith(b"\n"):
            return said
    return None


def _rendezvous_from(answer: bytes) -> Rendezvous:
    found = json.loads(answer)
    if "error" in found:
        raise RendezvousFailed(str(found["error"]))
    return Rendezvous(found["address"], found["network"], tuple(found["ports"]))

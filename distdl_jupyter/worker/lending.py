"""Makes one Ray cluster of a job's nodes: rank 0 starts the head, the others join it and lend their machine.

The nodes meet at a socket of rank 0: it tells them when the head is up, they tell when they are in, and when it closes
the job's code has ended. Everything that Ray starts here is gone when this rank goes on, and its folder with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.identity import identify
from distdl_jupyter.worker.raynode import RayNode
from distdl_jupyter.worker.watch.hooks import guarded

#: What the variable says where a platform has made the cluster, and of its nodes on which no process of ours runs.
PLATFORM, ELSEWHERE = "platform", "elsewhere"
#: Seconds in which all nodes must be in: the last one may be the last that a scheduler gets ready.
PATIENCE = 300.0
_STEP = 0.5
#: Seconds in which what tasks have printed last comes to the driver, which shows it.
_LAST_WORDS = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """What this rank was told: where the head is, and what is its own."""

    rank: int
    world_size: int
    nonce: str
    address: str
    ports: tuple[int, ...]
    own_address: str
    own_ports: tuple[int, ...]
    cpus: int
    #: Whether another node of the job is on this machine, whose folder is this one's too.
    shares_machine: bool

    @classmethod
    def of(cls, told: dict[str, Any]) -> Node:
        """Return it from the variable's JSON."""
        identity = identify(os.environ)
        return cls(identity.rank, int(os.environ["DISTDL_WORLD_SIZE"]), identity.nonce, str(told["address"]),
                   tuple(map(int, told["ports"])), str(told["own_address"]), tuple(map(int, told["own_ports"])),
                   int(told["cpus"]), bool(told["shares_machine"]))  # fmt: skip

    @property
    def hello(self) -> bytes:
        """The line with which a node begins; who does not know the job's nonce is not heard."""
        return f"{self.nonce}\n".encode()


@contextlib.contextmanager
def in_cluster(told: str) -> Iterator[bool]:
    """Be part of the job's Ray cluster and yield whether this rank only lends and has no code to run.

    ``told`` is the backend's variable. Raises RayNotStarted, ConnectionError.
    """
    if told in (PLATFORM, ELSEWHERE):
        _tell_ready(int(os.environ["DISTDL_WORLD_SIZE"]))
        yield told == ELSEWHERE
    else:
        with (_lead if os.environ["DISTDL_RANK"] == "0" else _lend)(Node.of(json.loads(told))):
            yield os.environ["DISTDL_RANK"] != "0"


@contextlib.contextmanager
def _lead(node: Node) -> Iterator[None]:
    """Run the head while the code runs."""
    _settings(node)
    _tell("rendezvous")
    with contextlib.ExitStack() as stack:
        # The other nodes hear of the end, whatever happens here, when these are closed.
        listener = stack.enter_context(socket.create_server((node.address, node.ports[2]), backlog=node.world_size))
        ray = stack.enter_context(RayNode(node.own_address, node.cpus, node.own_ports))
        ray.start("--head", f"--port={node.ports[0]}", f"--ray-client-server-port={node.ports[1]}", "--no-monitor",
                  "--include-dashboard=false", f"--temp-dir={ray.folder}")  # fmt: skip
        for connection in _joined(listener, node):
            stack.enter_context(connection)
        _tell_ready(node.world_size)
        try:
            yield
        finally:
            guarded("at the end", _leave)


def _joined(listener: socket.socket, node: Node) -> list[socket.socket]:
    """Return the connections of all other nodes, each of which is in. Raises ConnectionError."""
    until = time.monotonic() + PATIENCE
    found: list[socket.socket] = []
    listener.settimeout(_STEP)
    while len(found) < node.world_size - 1:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            if _line(connection) == node.hello:
                connection.sendall(b"up\n")
                found.append(connection)
            else:
                connection.close()
        _check_time(until, "Not all nodes have joined Ray")
    for connection in found:
        if _line(connection) != b"in\n":
            raise ConnectionError("A node has left while the nodes joined Ray; its own lines say why.")
    return found


@contextlib.contextmanager
def _lend(node: Node) -> Iterator[None]:
    """Lend this machine until rank 0 has ended."""
    _settings(node)
    _tell("rendezvous")
    with _at_rank_0(node) as connection, RayNode(node.own_address, node.cpus, node.own_ports) as ray:
        # One reader of the tasks' output on a machine; two would show every line twice.
        reader = ("--include-log-monitor=false",) if node.shares_machine else ()
        ray.start(f"--address={node.address}:{node.ports[0]}", *reader)
        connection.sendall(b"in\n")
        _tell_ready(node.world_size)
        connection.settimeout(_STEP)
        while not _closed(connection):
            ray.check()
        yield


def _at_rank_0(node: Node) -> socket.socket:
    """Return a connection to rank 0, whose head is up. Raises ConnectionError."""
    until = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((node.address, node.ports[2]), timeout=PATIENCE)
            connection.sendall(node.hello)
            if _line(connection) == b"up\n":
                return connection
            connection.close()
        _check_time(until, f"Rank 0 has not started Ray at {node.address}")
        time.sleep(_STEP)


def _check_time(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise ConnectionError(f"{what} within {PATIENCE:g} s.")


def _line(connection: socket.socket) -> bytes:
    """Return a short line, what came of it when the other side hung up."""
    said = b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"\n") and len(said) < 100 and (came := connection.recv(1)):
            said += came
    return said


def _closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _settings(node: Node) -> None:
    """Let ``ray.init()`` find this cluster, here and in what Ray starts, and let nobody else into it.

    Ray listens on all interfaces; it does so on the loopback alone where it may not be a cluster of several nodes.
    """
    # The nonce is known to the job's ranks alone, and who sees the token does not know the nonce.
    token = hashlib.sha256(f"ray {node.nonce}".encode()).hexdigest()
    os.environ |= {
        "RAY_ADDRESS": f"{node.address}:{node.ports[0]}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1" if node.world_size > 1 else "0",
    }


def _leave() -> None:
    """Disconnect the driver, if the code has not."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        time.sleep(_LAST_WORDS)
        ray.shutdown()


def _tell_ready(size: int) -> None:
    _tell("ready", backend="ray", size=size)


def _tell(type_: str, **fields: Any) -> None:
    out = channel.current()
    if out is not None:
        out.send(type_, **fields)

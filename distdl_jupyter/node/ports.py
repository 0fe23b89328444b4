"""Reserve free TCP ports of this host until a job binds them, and check whether hosts can connect to each other.

Ports are below Linux's ephemeral range (32768, ip-sysctl.txt), so outgoing connections do not use them. The agent holds
a lock on one file per port, so that no other job of this user gets the port. The files are in the temporary directory,
or in the user's cache folder if another user owns the folder of that name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.node import data_cache

#: The range of the ports, without its end.
MIN_PORT, MAX_PORT = 20_000, 32_000
#: Maximum number of ports in use that are tried.
_SPARE_TRIES = 400


class Ports:
    """Reserved ports, until they are released or the process exits."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def reserve(self, count: int, address: str) -> list[int]:
        """Return ``count`` more ports that are free on ``address``. Raises OSError."""
        folder, ports = get_lock_folder("ports"), list[int]()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in random.sample(range(MIN_PORT, MAX_PORT), count + _SPARE_TRIES):
            if len(ports) >= count:
                break
            fd = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # On a host without IPv6, binding fails with another error.
                is_used = _find_bind_error(socket.AF_INET6, "::1", port) == errno.EADDRINUSE
                if not is_used and _find_bind_error(family, address, port) is None:
                    self._fds.append(fd)
                    ports.append(port)
                    continue
            os.close(fd)
        if len(ports) < count:
            raise OSError(f"No free TCP port between {MIN_PORT} and {MAX_PORT} was found on {address}.")
        return ports

    def release(self) -> None:
        """Release all ports."""
        while self._fds:
            os.close(self._fds.pop())


def get_lock_folder(lock_type: str) -> Path:
    """Return the folder of this host's lock files of a type, writable only by this user. Raises OSError."""
    try:
        return permissions.make_private(Path(tempfile.gettempdir()) / f"distdl-{lock_type}-{os.getuid()}")
    except PermissionError:
        # A home may be shared by several hosts.
        base = permissions.make_folder(data_cache.get_default_base())
        locks = permissions.make_private(base / "locks")
        return permissions.make_private(locks / f"{lock_type}-{socket.gethostname()}")


def _find_bind_error(family: socket.AddressFamily, host: str, port: int) -> int | None:
    """Return the error number if binding fails, else None."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno
    return None


# connections between hosts -------------------------------------------------------------------------


#: Seconds for which a port accepts connections.
LISTENING_SECONDS = 60.0
#: Maximum number of simultaneous connection attempts, each in a thread.
_MAX_ATTEMPTS = 100
_MAX_HANDSHAKE_BYTES = 64


def listen(address: str) -> tuple[socket.socket, int]:
    """Return a socket on ``address`` and its port; it accepts connections for a minute or until closed.

    Raises OSError if the address is not this host's.
    """
    server = socket.create_server((address, 0), backlog=128)
    server.settimeout(0.5)
    port: int = server.getsockname()[1]

    def send_handshakes() -> None:
        deadline = time.monotonic() + LISTENING_SECONDS
        with server:
            while time.monotonic() < deadline and server.fileno() >= 0:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                except OSError:  # the socket was closed
                    return
                with connection, contextlib.suppress(OSError):
                    connection.sendall(_build_handshake(address, port))

    threading.Thread(target=send_handshakes, daemon=True).start()
    return server, port


def _build_handshake(address: str, port: int) -> bytes:
    """Return the handshake of a host, which distinguishes it from a gateway that accepts every connection."""
    return f"distdl {address}:{port}\n".encode()


def reach(targets: Sequence[tuple[str, int]], seconds: float) -> list[list[Any]]:
    """Return ``[address, port, reason]`` for each target in order; ``reason`` is "" if it was reached.

    All attempts take at most ``seconds``, divided equally if there are too many targets to try at once.
    """
    if not targets:
        return []
    share = seconds / math.ceil(len(targets) / _MAX_ATTEMPTS)
    with ThreadPoolExecutor(min(_MAX_ATTEMPTS, len(targets))) as pool:
        reasons = pool.map(lambda target: _try_connect(target[0], target[1], time.monotonic() + share), targets)
        return [[*target, reason] for target, reason in zip(targets, reasons, strict=True)]


def _try_connect(address: str, port: int, deadline: float) -> str:
    """Connect and wait for the handshake; return "", or why it failed."""
    expected, received = _build_handshake(address, port), b""
    try:
        with socket.create_connection((address, port), timeout=max(0.01, deadline - time.monotonic())) as connection:
            while received != expected:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                chunk = connection.recv(_MAX_HANDSHAKE_BYTES)
                received += chunk
                if not chunk or not expected.startswith(received):
                    return "another machine or program answers"
    except TimeoutError:
        return "timed out"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""

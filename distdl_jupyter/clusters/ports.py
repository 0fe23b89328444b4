"""Free TCP ports that stay free until the job binds them.

A port found by binding to 0 can be taken by any outgoing connection before the rank binds it. So ports are taken
from below Linux's ephemeral range (32768, ip-sysctl.txt) and each is reserved among this user's jobs by a lock file
that lives as long as the supervisor.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from distdl_jupyter.core.errors import LaunchFailed

_LOW, _HIGH = 20_000, 32_000


class PortReservation:
    """``count`` ports of ``address``, held until ``release`` or the end of the process."""

    def __init__(self, count: int, address: str = "127.0.0.1") -> None:
        self._held: list[int] = []
        self.ports: tuple[int, ...] = tuple(self._reserve(address) for _ in range(count))

    def _reserve(self, address: str) -> int:
        folder = Path(tempfile.gettempdir()) / f"distdl-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        for port in random.sample(range(_LOW, _HIGH), 400):
            fd = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _lock(fd) and _is_free(address, port):
                self._held.append(fd)
                return port
            os.close(fd)
        raise LaunchFailed(f"No free TCP port between {_LOW} and {_HIGH} was found on {address}.")

    def release(self) -> None:
        """Give the ports back."""
        while self._held:
            os.close(self._held.pop())


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(address: str, port: int) -> bool:
    for family, host in ((socket.AF_INET, address), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError:
            if family is socket.AF_INET:
                return False
    return True

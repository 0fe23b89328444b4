"""Free TCP ports of this host that stay free until the job binds them.

They lie below Linux's ephemeral range (32768, ip-sysctl.txt), where no outgoing connection takes them, and each is
reserved among this user's jobs by a lock file that lives as long as the agent. The files lie in the temporary
directory, or in the user's own cache where another user has taken the folder's name: no job is stopped by that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from distdl_jupyter.node import permissions

LOW, HIGH = 20_000, 32_000


class Ports:
    """The ports that were reserved, until they are released or the process ends."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def reserve(self, count: int, address: str) -> list[int]:
        """Return ``count`` more ports that are free on ``address``. Raises OSError."""
        return [self._one(address) for _ in range(count)]

    def _one(self, address: str) -> int:
        folder = locks("ports")
        for port in random.sample(range(LOW, HIGH), 400):
            fd = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _lock(fd) and _is_free(address, port):
                self._held.append(fd)
                return port
            os.close(fd)
        raise OSError(f"No free TCP port between {LOW} and {HIGH} was found on {address}.")

    def release(self) -> None:
        """Give all of them back."""
        while self._held:
            os.close(self._held.pop())


def locks(kind: str) -> Path:
    """Return the folder of this host's lock files of a kind, which this user alone may write. Raises OSError."""
    try:
        return permissions.own(Path(tempfile.gettempdir()) / f"distdl-{kind}-{os.getuid()}")
    except PermissionError:
        from distdl_jupyter.node.data_cache import usual_base

        # A home may be shared by several hosts.
        base = permissions.chosen(usual_base())
        return permissions.own(permissions.own(base / "locks") / f"{kind}-{socket.gethostname()}")


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(address: str, port: int) -> bool:
    """Say whether it can be bound there and nothing has it on the loopback of IPv6."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # A host without IPv6 has nothing there.
    return _refusal(family, address, port) is None and _refusal(socket.AF_INET6, "::1", port) != errno.EADDRINUSE


def _refusal(family: socket.AddressFamily, host: str, port: int) -> int | None:
    """Return the error number with which binding fails, None when it does not."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno
    return None

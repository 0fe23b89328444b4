"""Torch's store, at which its ranks find each other: on one machine it listens on loopback only, and ranks wait for it.

Rank 0 keeps the store. torch (2.13) lets it listen on every interface, whatever ``MASTER_ADDR`` is, and authenticates
nobody, but accepts a socket that listens already. A rank that asks a millisecond too early is refused, and torch waits
half a second and more before it tries again; the kernel's own table shows sooner when a process listens.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_MODULE, _NAME = "torch.distributed.rendezvous", "TCPStore"
#: Seconds after which torch is left to its own way: the store may be elsewhere, or rank 0 busy with something else.
TIMEOUT = 5.0
_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
#: The kernel's tables of connections, and its word for one that listens (include/net/tcp_states.h).
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


def await_listener(arguments: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Wait until the store listens, in a rank that is going to ask for it on this machine.

    ``arguments`` are those of ``init_process_group`` by name.
    """
    port = environment.get("MASTER_PORT", "")
    elsewhere = arguments.get("store") is not None or arguments.get("init_method") not in (None, "env://")
    if elsewhere or not port.isdigit() or not environment.get("MASTER_ADDR", "").startswith("127."):
        return
    if environment.get("RANK", "0") == "0" or not _TABLES[0].exists():
        return
    until, pause = time.monotonic() + TIMEOUT, _PAUSE
    while not listens(int(port)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def listens(port: int) -> bool:
    """Say whether a process of this machine listens at a TCP port (Linux)."""
    wanted = f":{port:04X}"
    for table in _TABLES:
        lines = table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else []
        if any(
            local.endswith(wanted) and state == _LISTENS for _, local, _, state in (line.split()[:4] for line in lines)
        ):
            return True
    return False


def stay_here(environment: Mapping[str, str] = os.environ) -> None:
    """Have the store of this rank bound to ``MASTER_ADDR``, where that is an address of the loopback interface."""
    module = sys.modules.get(_MODULE)
    if module is None or not environment.get("MASTER_ADDR", "").startswith("127."):
        return
    make = getattr(module, _NAME)
    if not hasattr(make, "__wrapped__"):
        setattr(module, _NAME, _bound(make))


def _bound(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make, updated=())
    def made(*args: Any, **kwargs: Any) -> Any:
        host, port = kwargs.get("host_name"), kwargs.get("port")
        if kwargs.get("is_master") and isinstance(port, int) and str(host).startswith("127."):
            descriptor = _listening(str(host), port)
            if descriptor is not None:
                kwargs.setdefault("master_listen_fd", descriptor)
        return make(*args, **kwargs)

    return made


def _listening(host: str, port: int) -> int | None:
    """Return a descriptor that torch takes over; None where the port is taken, as by this rank's own store before."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((host, port))
        except OSError:
            return None
        return server.detach()

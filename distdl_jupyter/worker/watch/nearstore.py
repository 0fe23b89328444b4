"""Lets torch's store listen on the loopback interface only, where all ranks are on one machine.

Rank 0 keeps the store at which torch's ranks find each other. torch (2.13) lets it listen on every interface, whatever
``MASTER_ADDR`` says, and asks nobody who they are; it takes a socket that listens already, though.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

_MODULE, _NAME = "torch.distributed.rendezvous", "TCPStore"


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

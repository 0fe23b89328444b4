"""Where ranks meet that a platform has started: an address of node 0, its network and free ports.

Nothing here knows what is served at it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import NamedTuple

from distdl_jupyter.host.interfaces import interfaces

#: Seconds that nodes wait for the one of rank 0: it can be the last one that the platform gets ready.
PATIENCE = 300.0


class NoMeeting(Exception):
    """The nodes cannot meet; the message says why in one sentence."""


class Meeting(NamedTuple):
    """An address of node 0, the network of that address as "10.0.0.0/24", and free ports there."""

    address: str
    network: str
    ports: tuple[int, ...] = ()


def own_address(target: str) -> str:
    """Return this node's address on its route to ``target``. Raises NoMeeting where there is no route."""
    try:
        # Connecting a datagram socket sends nothing: it only asks the kernel for the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise NoMeeting(f"{os.uname().nodename} has no route to {target}: {error.strerror}.") from error


def interface(address: str) -> str:
    """Return the name of this node's interface that has ``address``, "" when none has."""
    return next((str(one["name"]) for one in interfaces() if one["address"] == address), "")


def network_of(address: str) -> str:
    """Return the network of one of this node's addresses, the address alone when its interface is not found."""
    prefix = next((one["prefix"] for one in interfaces() if one["address"] == address), 32)
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))

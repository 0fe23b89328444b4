"""Where ranks meet that a platform has started: an address of node 0, its network and free ports.

Nothing here knows what is served at it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from typing import NamedTuple

#: Seconds that nodes wait for the one of rank 0: it can be the last one that the scheduler gets ready.
PATIENCE = 300.0

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # include/uapi/linux/sockios.h


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
    return next((name for name, own, _mask in _interfaces() if own == address), "")


def network_of(address: str) -> str:
    """Return the network of one of this node's addresses, the address alone when its interface is not found."""
    mask = next((mask for _name, own, mask in _interfaces() if own == address), "255.255.255.255")
    return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))


def _interfaces() -> list[tuple[str, str, str]]:
    """Return (name, first IPv4 address, mask) of each interface that has one (Linux, netdevice(7))."""
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                address = fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(probe, _SIOCGIFNETMASK, request)[20:24]
                found.append((name, socket.inet_ntoa(address), socket.inet_ntoa(mask)))
    return found

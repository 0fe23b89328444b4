"""Where the ranks of one allocation meet: found out by the node of rank 0, read by all others from the job's folder.

A scheduler names the nodes only when the job begins there, so address, network and ports are found then. The address is
the one of node 0 from which its route to the other nodes leaves. Nothing here knows what is served at it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "meeting.json"
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


def find(others: Sequence[str]) -> Meeting:
    """Return where the nodes ``others`` reach this one; the loopback when there is no other. Raises NoMeeting."""
    if not others:
        return Meeting("127.0.0.1", "127.0.0.0/8")
    address = own_address(_address_of(others[0]))
    return Meeting(address, network_of(address))


def tell(folder: Path, meeting: Meeting | None, error: str = "") -> None:
    """Let the other nodes read it, or why there is none."""
    content = {"error": error} if meeting is None else meeting._asdict()
    hidden = folder / f".{FILE}.{os.getpid()}"
    hidden.write_text(json.dumps(content), encoding="utf-8")
    hidden.replace(folder / FILE)


def wait(folder: Path, stopped: Callable[[], object] = bool, patience: float = PATIENCE) -> Meeting:
    """Return what the node of rank 0 told. Raises NoMeeting, also when ``stopped`` says so."""
    until = time.monotonic() + patience
    while (found := _read(folder)) is None:
        if stopped():
            raise NoMeeting("It was stopped before it began.")
        if time.monotonic() > until:
            raise NoMeeting(f"The node of rank 0 has not begun within {patience:g} s.")
        time.sleep(0.1)
    return found


def _read(folder: Path) -> Meeting | None:
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if "error" in found:
        raise NoMeeting(found["error"])
    return Meeting(found["address"], found["network"], tuple(found["ports"]))


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


def _address_of(node: str) -> str:
    """Return the IPv4 address at which the scheduler reaches a node, else the one that its name has."""
    for name in (_slurm_address(node), node):
        with contextlib.suppress(OSError):
            for *_, place in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM):
                if not str(place[0]).startswith("127."):
                    return str(place[0])
    raise NoMeeting(f"{os.uname().nodename} does not find the address of {node}: no name service knows it there.")


def _slurm_address(node: str) -> str:
    """Return Slurm's own ``NodeAddr`` of a node, the node's name where Slurm does not say."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["scontrol", "show", "node", "--oneliner", node], capture_output=True, text=True,
                              timeout=10, check=True).stdout  # fmt: skip
        return next(word.partition("=")[2] for word in said.split() if word.startswith("NodeAddr="))
    return node


def names(text: str) -> list[str]:
    """Return the hosts of Slurm's list, as ``node[1-3],gpu7``; the text cut at commas where it cannot be asked."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, timeout=10,
                              check=True).stdout.split()  # fmt: skip
    return text.split(",")

"""This host's network interfaces with their IPv4 addresses, asked of the kernel (netdevice(7)).

Standard library only; on a system other than Linux it knows none.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
from pathlib import Path
from typing import Any

_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
#: Bytes of a ``struct ifreq`` on 64-bit Linux: a name of 16 and a union whose largest member has 24.
_ENTRY = 40
_SYSTEM = Path("/sys/class/net")


def interfaces() -> list[dict[str, Any]]:
    """Return one dict for each IPv4 address, in the kernel's order.

    ``name``, ``address``, ``prefix`` (bits), ``up`` (switched on, with a carrier), ``loopback``, ``speed`` (Mbit/s, 0:
    not known), and ``virtual``: a bridge or a container's end, which other machines do not see.
    """
    if sys.platform != "linux":
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return [_described(asked, name, address) for name, address in _addresses(asked)]


def _addresses(asked: socket.socket) -> list[tuple[bytes, bytes]]:
    """Return (label, packed address) of all addresses, also of an interface's second and third."""
    room = array.array("B", bytes(_ENTRY * 512))
    where, size = room.buffer_info()
    answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("iP", size, where))
    used = struct.unpack("iP", answer)[0]
    content = room.tobytes()[:used]
    entries = [content[at : at + _ENTRY] for at in range(0, used, _ENTRY)]
    return [(entry[:16].split(b"\0", 1)[0], entry[20:24]) for entry in entries]


def _described(asked: socket.socket, label: bytes, address: bytes) -> dict[str, Any]:
    flags = struct.unpack_from("H", _ask(asked, _SIOCGIFFLAGS, label, address), 16)[0]
    mask = _ask(asked, _SIOCGIFNETMASK, label, address)[20:24]
    name = label.decode(errors="replace").split(":", 1)[0]  # eth0:1 is an old label of eth0
    return {
        "name": name,
        "address": socket.inet_ntoa(address),
        "prefix": int.from_bytes(mask, "big").bit_count(),
        "up": flags & (_UP | _RUNNING) == _UP | _RUNNING,
        "loopback": bool(flags & _LOOPBACK),
        "speed": _speed(name),
        "virtual": _is_virtual(name),
    }


def _ask(asked: socket.socket, question: int, label: bytes, address: bytes) -> bytes:
    """The address goes along, because the kernel else answers for the interface's first."""
    request = label.ljust(16, b"\0") + struct.pack("HH", socket.AF_INET, 0) + address
    return fcntl.ioctl(asked, question, request.ljust(_ENTRY, b"\0"))


def _speed(name: str) -> int:
    try:
        return max(0, int((_SYSTEM / name / "speed").read_text()))
    except (OSError, ValueError):  # many virtual devices have none
        return 0


#: Bridges and tunnels of Docker, libvirt, LXD, Podman and Kubernetes: each host has the like, none leads to another.
_LOCAL_NAMES = ("docker", "br-", "virbr", "lxcbr", "lxdbr", "podman", "cni", "veth", "cali", "flannel", "vmnet")


def _is_virtual(name: str) -> bool:
    return name.startswith(_LOCAL_NAMES)

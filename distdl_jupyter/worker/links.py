"""How long this process's connections were busy sending, as counted by the kernel (Linux only).

``tcpi_busy_time`` of ``struct tcp_info`` (include/uapi/linux/tcp.h, since Linux 4.9) counts the microseconds in which a
connection had unacknowledged data in flight. A slow link shows up at the rank that sends through it. An idle peer may
delay its acknowledgment by up to 40 ms, so the number alone is not conclusive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

#: Offset and end of tcpi_busy_time in ``struct tcp_info``.
_BUSY, _LENGTH = 168, 176
#: TCP_ESTABLISHED (include/net/tcp_states.h).
_ESTABLISHED = 1
_DESCRIPTORS = Path("/proc/self/fd")

#: Busy time of each connection at the last call, by inode.
_before: dict[int, int] = {}


def time_sending() -> int:
    """Return for how many microseconds the busiest TCP connection of this process was sending since the last call.

    This is not the sum over connections, because they share a link.
    """
    global _before
    busy_times = dict(filter(None, map(_connection, _descriptors())))
    longest = max((busy - _before.get(inode, 0) for inode, busy in busy_times.items()), default=0)
    _before = busy_times
    return longest


def _descriptors() -> list[int]:
    try:
        return [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []


def _connection(fd: int) -> tuple[int, int] | None:
    """Return inode and busy microseconds of a TCP connection, None for anything else."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        status = os.fstat(fd)
        if not stat.S_ISSOCK(status.st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) >= _LENGTH and info[0] == _ESTABLISHED:
            return status.st_ino, struct.unpack_from("=Q", info, _BUSY)[0]
    return None

"""Who is at the other end of a Unix socket, as the operating system knows it."""

from __future__ import annotations

import socket
import struct
import sys


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the operating system knows it."""
    if sys.platform == "darwin":
        # struct xucred: version, uid, ...; SOL_LOCAL is 0 and LOCAL_PEERCRED 1 (sys/un.h).
        return int(struct.unpack("II", connection.getsockopt(0, 1, 76)[:8])[1])
    asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", asked)[1])

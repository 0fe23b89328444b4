"""Messages at a template's socket: a length, then JSON; descriptors travel beside the length."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">I")
#: Environments of some hundred kB are legal; nothing larger is believed.
_LONGEST = 64 * 2**20
_MOST_DESCRIPTORS = 8


class Broken(Exception):
    """The other end went away or spoke nonsense."""


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError."""
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([_LENGTH.pack(len(body))], rights)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return one message and the descriptors beside it. Raises Broken, OSError."""
    length, found = _header(connection)
    try:
        message = json.loads(_exactly(connection, length))
    except (Broken, OSError, ValueError) as error:
        for fd in found:
            os.close(fd)
        raise Broken(str(error)) from error
    if not isinstance(message, dict):
        for fd in found:
            os.close(fd)
        raise Broken("the message is not a JSON object")
    return message, found


def _header(connection: socket.socket) -> tuple[int, list[int]]:
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    head, rights, _flags, _address = connection.recvmsg(_LENGTH.size, room)
    found = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for fd in found:
        os.set_inheritable(fd, False)  # noqa: FBT003 - its only argument
    head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size or (length := _LENGTH.unpack(head)[0]) > _LONGEST:
        raise Broken("the message ended before it began")
    return length, list(found)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 2**20))
        if not part:
            raise Broken("the message was cut off")
        parts += part
    return bytes(parts)

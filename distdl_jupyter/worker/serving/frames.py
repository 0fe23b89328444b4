"""Messages on a socket: a JSON header and a binary body, each behind its length. Pure: bytes in, messages out.

``<header length, 4 bytes> <body length, 8 bytes> <header> <body>``, lengths in network order.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

_LENGTHS = struct.Struct("!IQ")
#: Longest header. Errors with their frames and pictures that a value draws stand in headers.
LONGEST_HEADER = 64 * 1024 * 1024
#: Longest body: more would not fit into a rank's memory twice.
LONGEST_BODY = 64 * 1024 * 1024 * 1024


class Broken(ValueError):
    """What came is no message, or a longer one than is allowed."""


class Message(NamedTuple):
    """One message. ``body`` is mostly a pickle; nobody may open it before the other end is known."""

    header: dict[str, Any]
    body: bytes = b""


def encode(header: dict[str, Any], body: bytes | bytearray | memoryview = b"") -> list[bytes | bytearray | memoryview]:
    """Return the message as pieces to be sent one behind the other; the body is not copied."""
    text = json.dumps(header, separators=(",", ":")).encode()
    head = _LENGTHS.pack(len(text), memoryview(body).nbytes) + text
    return [head, body] if memoryview(body).nbytes else [head]


class Reader:
    """Puts messages together from what a socket gives.

    ``strict`` allows one short header without a body only, for an end that has not yet said who it is; what came
    behind it is left until ``strict`` is taken back.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._data = bytearray()
        self.strict = strict

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return the messages that are complete now. Raises Broken."""
        self._data += data
        found: list[Message] = []
        while not (self.strict and found) and (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> Message | None:
        if len(self._data) < _LENGTHS.size:
            return None
        head, body = _LENGTHS.unpack_from(self._data)
        if head > (4096 if self.strict else LONGEST_HEADER) or body > (0 if self.strict else LONGEST_BODY):
            raise Broken(f"A message of {head + body} bytes exceeds the limit.")
        begin = _LENGTHS.size + head
        if len(self._data) < begin + body:
            return None
        message = Message(_header(bytes(self._data[_LENGTHS.size : begin])), bytes(self._data[begin : begin + body]))
        del self._data[: begin + body]
        return message


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise Broken("A message has no JSON header.")
    return header

"""The wire format between a supervisor and its agent on another machine: frames over one pair of byte streams.

A frame is one letter, the length of its body in 4 bytes (big-endian), and the body. ``J`` is a message: a JSON object
with a ``type``. ``D`` is data: the number of a channel in 4 bytes, then bytes of that channel. A login shell
may print other text first, so the agent starts with ``HANDSHAKE`` and a reader skips everything before it.

This module does no I/O and does not interpret messages or channels.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

HANDSHAKE = b"\n\x1edistdl-agent 1\n"
#: Maximum length of a body in bytes; data is split into much smaller chunks.
MAX_BODY_BYTES = 64 * 1024 * 1024
#: Maximum number of bytes that a login shell may print before the handshake.
MAX_PREAMBLE_BYTES = 1024 * 1024
#: Maximum bytes of data in one frame.
CHUNK_BYTES = 64 * 1024

_HEADER = struct.Struct(">cI")
_CHANNEL = struct.Struct(">I")


class InvalidFrame(ValueError):
    """The bytes are not a valid frame."""


class Data(NamedTuple):
    """Bytes of one channel; b"" ends it."""

    channel: int
    bytes: bytes


def encode_message(type_: str, /, **fields: Any) -> bytes:
    """Return a message as one frame. Raises TypeError for values that JSON cannot represent."""
    body = json.dumps({"type": type_, **fields}, separators=(",", ":")).encode()
    return _HEADER.pack(b"J", len(body)) + body


def encode_data(channel: int, content: bytes) -> bytes:
    """Return bytes of a channel as frames; b"" gives the frame that ends the channel."""
    chunks = [content[offset : offset + CHUNK_BYTES] for offset in range(0, len(content), CHUNK_BYTES)] or [b""]
    return b"".join(_HEADER.pack(b"D", len(chunk) + 4) + _CHANNEL.pack(channel) + chunk for chunk in chunks)


def measure_complete(content: bytes) -> int:
    """Return the length of the complete frames at the start. Raises InvalidFrame."""
    offset = 0
    while (end := _find_end(content, offset)) is not None:
        offset = end
    return offset


def _find_end(content: bytes | bytearray, offset: int) -> int | None:
    """Return where the frame at this position ends, or None if it is incomplete. Raises InvalidFrame."""
    if offset + _HEADER.size > len(content):
        return None
    letter, length = _HEADER.unpack_from(content, offset)
    if not (letter == b"J" or (letter == b"D" and length >= _CHANNEL.size)) or length > MAX_BODY_BYTES:
        raise InvalidFrame(f"Invalid frame: it begins with {bytes(content[offset : offset + 16])!r}.")
    end = offset + _HEADER.size + int(length)
    return end if end <= len(content) else None


class FrameReader:
    """Splits a byte stream into frames. With ``expect_handshake``, the stream must start with the handshake."""

    def __init__(self, *, expect_handshake: bool) -> None:
        self._buffer = bytearray()
        #: Whether the handshake was received.
        self.has_handshake = not expect_handshake

    @property
    def preamble(self) -> bytes:
        """The bytes received before the handshake."""
        return b"" if self.has_handshake else bytes(self._buffer)

    def feed(self, content: bytes) -> list[dict[str, Any] | Data]:
        """Add the next bytes and return the complete frames, a message as its JSON object. Raises InvalidFrame."""
        buffer = self._buffer
        search_start = max(0, len(buffer) - len(HANDSHAKE) + 1)
        buffer += content
        if not self.has_handshake:
            if (offset := buffer.find(HANDSHAKE, search_start)) < 0:
                if len(buffer) > MAX_PREAMBLE_BYTES:
                    raise InvalidFrame(f"The first {MAX_PREAMBLE_BYTES:,} bytes from the agent contain no handshake.")
                return []
            del buffer[: offset + len(HANDSHAKE)]
            self.has_handshake = True
        frames, offset = list[dict[str, Any] | Data](), 0
        while (end := _find_end(buffer, offset)) is not None:
            body = offset + _HEADER.size
            if buffer[offset] == ord("J"):
                try:
                    message = json.loads(buffer[body:end])
                except ValueError:
                    raise InvalidFrame("A message is not valid JSON.") from None
                if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                    raise InvalidFrame("A message has no type.")
                frames.append(message)
            else:
                frames.append(Data(_CHANNEL.unpack_from(buffer, body)[0], bytes(buffer[body + _CHANNEL.size : end])))
            offset = end
        del buffer[:offset]
        return frames

"""Forward bytes between a job's processes and the supervisor: pipes, frame queues, receive buffers and sockets.

If the supervisor reads slowly, the agent stops reading, so processes block as on any full pipe. Reads are paced:
reading each line immediately would slow down training. This module does not know which channel belongs to which rank.

A supervisor and its agent on another machine exchange frames. A frame is one letter, the length of its body in 4 bytes
(big-endian), and the body. ``J`` is a message: a JSON object with a ``type``. ``D`` is data: the number of a channel in
4 bytes, then bytes of that channel. A login shell may print other text first, so the agent starts with ``HANDSHAKE``
and a reader skips everything before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import selectors
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Capacity in bytes of all pipes of one reader, and maximum and minimum of one. Linux allows 64 MB a user (pipe(7)).
_MAX_TOTAL_BYTES, _MAX_PIPE_BYTES, MIN_PIPE_BYTES = 16 * 1024 * 1024, 1024 * 1024, 64 * 1024
#: Seconds between two rounds under constant output.
_PAUSE_SECONDS = 0.03
#: Number of rounds without a pause after an idle time.
_BURST_ROUNDS = 20
#: Queued bytes above which an outbox is full, and below which data may be added again. Both exceed one frame of data.
_FULL_BYTES, _AVAILABLE_BYTES = 1024 * 1024, 256 * 1024
#: Pieces of fewer bytes are joined, to save the memory overhead of each.
_SMALL_BYTES = 4096
#: Buffered bytes for a socket above which the supervisor is requested to pause, and below which it may resume.
_HOLD_BYTES, _RESUME_BYTES = 4 * 1024 * 1024, 1024 * 1024


class ReadPace:
    """Limits how often pipes are read: immediately after an idle time, on average once per ``_PAUSE_SECONDS``."""

    def __init__(self) -> None:
        self._budget = float(_BURST_ROUNDS)
        self._updated_at = time.monotonic()

    def record_round(self, *, is_busy: bool) -> None:
        """Record a round that read data. A round that ``is_busy``, in which a pipe was half full, needs no pause."""
        now = time.monotonic()
        self._budget = min(_BURST_ROUNDS, self._budget + (now - self._updated_at) / _PAUSE_SECONDS) - (not is_busy)
        self._updated_at = now

    def compute_pause(self) -> float:
        """Return the seconds until the next round."""
        pause = -self._budget * _PAUSE_SECONDS - (time.monotonic() - self._updated_at)
        return max(0.0, pause) if self._budget < 0 else 0.0


def widen_pipe(fd: int, pipe_count: int) -> int:
    """Set the capacity of one of ``pipe_count`` pipes to its share; return its capacity in bytes."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return 16 * 1024  # the initial capacity on macOS
    share = max(MIN_PIPE_BYTES, min(_MAX_PIPE_BYTES, _MAX_TOTAL_BYTES // max(1, pipe_count)))
    with contextlib.suppress(OSError):  # not a pipe, or the user's limit for pipes is reached
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << (share.bit_length() - 1))
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return MIN_PIPE_BYTES


def count_unread_bytes(fd: int) -> int:
    """Return how many bytes can be read immediately (FIONREAD, ioctl_pipe and pipe(7))."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])


class Outbox:
    """Queue of frames that are written to one descriptor without blocking."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._frames: deque[bytes] = deque()
        self._partial = b""
        #: Bytes queued behind the frame that is being sent.
        self.size = 0

    def put(self, frames: bytes) -> None:
        """Add one or more complete frames at the end."""
        self._frames.append(frames)
        self.size += len(frames)

    @property
    def is_full(self) -> bool:
        """Whether only responses should be added."""
        return self.size > _FULL_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether everything was sent."""
        return not (self._partial or self._frames)

    def flush(self) -> None:
        """Write as much as possible without blocking. Raises OSError when the connection is closed."""
        while not self.is_empty:
            if not self._partial:
                self._partial = self._frames.popleft()
                self.size -= len(self._partial)
            try:
                written = os.write(self.fd, self._partial)
            except BlockingIOError:
                return
            self._partial = self._partial[written:]


class Inbox:
    """Buffer of the bytes received on one channel, without the first ``skip``. Any thread may feed it; one reads it.

    ``on_space`` is called when a reader that was behind has consumed half of the buffer.
    """

    #: Number of unread bytes above which the reader is behind.
    MAX_UNREAD = 16 * 1024 * 1024

    def __init__(self, skip: int = 0, on_space: Callable[[], object] = bool) -> None:
        self._skip = skip
        self._on_space = on_space
        self._condition = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._on_fed: Callable[[], object] = bool
        self._is_closed = False
        #: Number of unread bytes; whether the end was received.
        self.unread = 0
        self.has_ended = False

    @property
    def is_behind(self) -> bool:
        """Whether receiving should pause because too much is unread."""
        return self.unread > self.MAX_UNREAD

    def feed(self, content: bytes) -> None:
        """Add bytes; b"" is the end."""
        with self._condition:
            self.has_ended = self.has_ended or not content
            skipped = min(self._skip, len(content))
            self._skip -= skipped
            if (rest := content[skipped:]) and not self._is_closed:
                self.unread += len(rest)
                if self._chunks and len(self._chunks[-1]) < _SMALL_BYTES:
                    rest = self._chunks.pop() + rest
                self._chunks.append(rest)
            self._condition.notify()
            self._on_fed()

    def listen(self, on_fed: Callable[[], object]) -> None:
        """Call ``on_fed`` now, and on the feeding thread after each feed; it must not block."""
        with self._condition:
            self._on_fed = on_fed
            on_fed()

    def take(self, max_bytes: int, timeout: float | None = 0.0) -> bytes | None:
        """Return at most ``max_bytes`` bytes, b"" at the end, or None after ``timeout`` seconds (None: no limit)."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._chunks or self.has_ended or self._is_closed, timeout):
                return None
            was_behind = self.unread > self.MAX_UNREAD // 2
            chunks, count = list[bytes](), 0
            while self._chunks and count < max_bytes:
                chunk = self._chunks.popleft()
                if excess := chunk[max_bytes - count :]:
                    self._chunks.appendleft(excess)
                chunks.append(chunk[: max_bytes - count])
                count += len(chunks[-1])
            self.unread -= count
        if was_behind and self.unread <= self.MAX_UNREAD // 2:
            self._on_space()
        return b"".join(chunks)

    def read(self, size: int, /) -> bytes:
        """Wait for ``size`` bytes and return them, fewer only at the end."""
        content = list[bytes]()
        while size > 0 and (chunk := self.take(size, None)):
            content.append(chunk)
            size -= len(chunk)
        return b"".join(content)

    def close(self) -> None:
        """Discard all bytes, including those received later."""
        with self._condition:
            self._is_closed, self._on_fed, self.unread = True, bool, 0
            self._chunks.clear()
            self._condition.notify()
        self._on_space()


# from processes and sockets ------------------------------------------------------------------------


def watch(
    selector: selectors.BaseSelector, fd: int | socket.socket, event: int, handler: Callable[[], None], *, enabled: bool
) -> None:
    """Call ``handler`` when a descriptor is ready; unregister it unless ``enabled``."""
    is_watched = fd in selector.get_map()
    if enabled and not is_watched:
        selector.register(fd, event, handler)
    elif is_watched and not enabled:
        selector.unregister(fd)


@dataclass(slots=True, eq=False)
class ChannelSource:
    """A descriptor, and the channel on which its bytes are sent; ``half_size`` is half of its capacity in bytes.

    ``is_open`` until it is closed. A source that ``is_held`` is not read, because the reader of its channel is behind.
    """

    fd: int
    channel: int
    half_size: int
    is_open: bool = True
    is_held: bool = False


class Channels:
    """All sources of the agent."""

    def __init__(self, selector: selectors.BaseSelector, outbox: Outbox) -> None:
        self._selector = selector
        self._outbox = outbox
        self._sources: list[ChannelSource] = []
        self._is_paused = False
        self._has_read = self._is_busy = False
        self._pace = ReadPace()

    def open(self, channel: int) -> tuple[int, ChannelSource | None]:
        """Return a descriptor for a process to write to, and its source if it is read here."""
        read, write = os.pipe()
        return write, self.add(read, channel)

    def add(self, fd: int, channel: int) -> ChannelSource | None:
        """Forward ``fd`` to the channel until it ends."""
        os.set_blocking(fd, False)
        # The final number of pipes is unknown, so the first pipes must leave capacity for later ones.
        source = ChannelSource(fd, channel, widen_pipe(fd, max(64, 4 * len(self._sources))) // 2)
        self._sources.append(source)
        self._watch(source)
        return source

    def _watch(self, source: ChannelSource) -> None:
        enabled = source.is_open and not (self._is_paused or source.is_held)
        callback = functools.partial(self._read, source)
        watch(self._selector, source.fd, selectors.EVENT_READ, callback, enabled=enabled)

    def regulate(self) -> None:
        """Stop reading when the outbox is full; continue when it has room."""
        is_paused = self._outbox.is_full or (self._is_paused and self._outbox.size >= _AVAILABLE_BYTES)
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            for source in self._sources:
                self._watch(source)

    def hold(self, channel: int, *, is_held: bool) -> None:
        """Pause or resume reading a channel, so that its writer blocks."""
        for source in self._sources:
            if source.channel == channel:
                source.is_held = is_held
                self._watch(source)

    def finish_round(self) -> float:
        """Return the seconds until the next round (see ``ReadPace``). Call it once per round."""
        if self._has_read:
            self._pace.record_round(is_busy=self._is_busy)
        self._has_read = self._is_busy = False
        return self._pace.compute_pause()

    def _read(self, source: ChannelSource) -> None:
        # More sources may be ready in the round that filled the outbox.
        if not source.is_open or self._outbox.is_full:
            return
        try:
            content = os.read(source.fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a process has exited without reading all its input
            content = b""
        if content:
            self._outbox.put(encode_data(source.channel, content))
            is_large = len(content) >= min(source.half_size, CHUNK_BYTES)
            self._has_read, self._is_busy = True, self._is_busy or is_large
        else:
            self.close_source(source)

    def drain_all(self) -> None:
        """Forward everything written so far to any source, even if the outbox is full."""
        for source in self._sources:
            remaining = count_unread_bytes(source.fd)
            while remaining > 0 and (content := os.read(source.fd, min(remaining, CHUNK_BYTES))):
                self._outbox.put(encode_data(source.channel, content))
                remaining -= len(content)

    def close_source(self, source: ChannelSource, *, end: bool = True) -> None:
        """Close the descriptor and, with ``end``, send the end of the channel."""
        if source.is_open:
            source.is_open = False
            self._sources.remove(source)
            self._watch(source)
            os.close(source.fd)
            if end:
                self._outbox.put(encode_data(source.channel, b""))

    def end_all(self) -> None:
        """Forward everything written so far and end every channel."""
        self.drain_all()
        for source in self._sources.copy():
            self.close_source(source)

    def discard_all(self) -> None:
        """Discard everything written so far, because the supervisor is gone."""
        for source in self._sources:
            if remaining := count_unread_bytes(source.fd):
                os.read(source.fd, remaining)


class SocketWriter:
    """Writes the bytes that the supervisor sends on a channel to a local socket.

    Bytes that do not fit are buffered, because an agent that stops reading would miss the end of the job.
    ``hold`` is called with ``held``: whether the supervisor should pause sending on this channel.
    """

    is_behind = False

    def __init__(
        self, connection: socket.socket, selector: selectors.BaseSelector, hold: Callable[..., object]
    ) -> None:
        self._socket = connection
        self._outbox = Outbox(connection.fileno())
        self._selector = selector
        self._hold = hold
        self._has_ended = self._is_held = False

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk; b"" is the end."""
        if self._socket.fileno() < 0:  # closed
            return
        if chunk:
            self._outbox.put(chunk)
        else:
            self._has_ended = True
        self._write()

    def _write(self) -> None:
        try:
            self._outbox.flush()
        except OSError:  # connection lost; the reader of this socket handles it
            self._outbox, self._has_ended = Outbox(self._outbox.fd), True
        is_held = self._outbox.size > (_RESUME_BYTES if self._is_held else _HOLD_BYTES)
        if is_held != self._is_held:
            self._is_held = is_held
            self._hold(held=is_held)
        watch(self._selector, self._socket, selectors.EVENT_WRITE, self._write, enabled=not self._outbox.is_empty)
        if self._has_ended and self._outbox.is_empty:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)  # the other direction is read elsewhere
            self._socket.close()


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

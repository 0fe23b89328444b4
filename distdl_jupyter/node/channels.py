"""Bytes between the processes of a job and the supervisor: pipes, queued frames, received bytes, joined sockets.

While the supervisor reads slowly, nothing is read here, so processes wait as they do at any full pipe. Reading each
line at once would take processor time from the training loop. Nothing here knows which channel belongs to which rank.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
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

from distdl_jupyter.node import frames

#: Bytes that the pipes of one reader may hold, and one of them: a user has 64 MB of pipes on Linux (see pipe(7)).
_ALL, _MOST_OF_ONE, LEAST = 16 * 1024 * 1024, 1024 * 1024, 64 * 1024
#: Seconds between two rounds while something is written all the time, and rounds that may follow each other at once.
_PAUSE, BURST = 0.03, 20


class Pace:
    """Limits how often pipes are read: at once after a silence, ``1 / _PAUSE`` times a second in the long run."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def round(self, *, hurried: bool) -> None:
        """Count a round that read something; ``hurried``: a pipe was half full, so there is no pause."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) / _PAUSE) - (not hurried)
        self._at = now

    def pause(self) -> float:
        """Return the seconds until the next round."""
        return max(0.0, -self._left * _PAUSE - (time.monotonic() - self._at)) if self._left < 0 else 0.0


def widen(fd: int, pipes: int) -> int:
    """Set the capacity of one of so many pipes to its share; return its capacity in bytes."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return 16 * 1024  # macOS: a pipe begins with that
    share = max(LEAST, min(_MOST_OF_ONE, _ALL // max(1, pipes)))
    with contextlib.suppress(OSError):  # not a pipe, or the user's limit for pipes is reached
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << (share.bit_length() - 1))
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return LEAST


def waiting(fd: int) -> int:
    """Return how many bytes can be read at once (FIONREAD, ioctl_pipe and pipe(7))."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])


# to the supervisor ---------------------------------------------------------------------------------


#: Bytes. More than a frame of data, little enough that a slow reader costs no memory.
_FULL, _ROOM = 1024 * 1024, 256 * 1024


class Outbox:
    """The frames for one descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._frames: deque[bytes] = deque()
        self._begun = b""
        self._urgent = b""
        #: Bytes that wait behind the frame that is being sent.
        self.size = 0

    def put(self, frames: bytes) -> None:
        """Add one or more whole frames at the end."""
        self._frames.append(frames)
        self.size += len(frames)

    def urge(self, frame: bytes) -> None:
        """Send a frame before all others; it replaces an urgent one that was not sent yet."""
        self._urgent = frame

    @property
    def full(self) -> bool:
        """Whether nothing should be added but answers."""
        return self.size > _FULL

    @property
    def room(self) -> bool:
        """Whether so much was sent that data may be added again."""
        return self.size < _ROOM

    @property
    def empty(self) -> bool:
        """Whether all was sent."""
        return not (self._begun or self._urgent or self._frames)

    def flush(self) -> None:
        """Write as much as fits now. Raises OSError when the other side is gone."""
        while self._begun or self._next():
            try:
                written = os.write(self.fd, self._begun)
            except BlockingIOError:
                return
            self._begun = self._begun[written:]

    def _next(self) -> bool:
        if self._urgent:
            self._begun, self._urgent = self._urgent, b""
        elif self._frames:
            self._begun = self._frames.popleft()
            self.size -= len(self._begun)
        return bool(self._begun)


# from the other side -------------------------------------------------------------------------------


#: Pieces of fewer bytes are joined: each one takes memory of its own.
_SMALL = 4096


class Inbox:
    """Bytes of one channel that were received. Any thread feeds it, and one thread reads it.

    ``has_room`` is called when a reader that was ``behind`` has taken half of what waited.
    """

    #: Bytes of an inbox whose reader is behind.
    MOST = 16 * 1024 * 1024

    def __init__(self, skip: int = 0, has_room: Callable[[], object] = bool) -> None:
        """Leave out the first ``skip`` bytes."""
        self._skip = skip
        self._has_room = has_room
        self._fed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._on_fed: Callable[[], object] = bool
        self._closed = False
        #: Bytes that wait for the reader, and whether nothing will follow them.
        self.pending = 0
        self.ended = False

    @property
    def behind(self) -> bool:
        """Whether so much waits that nothing more should be received."""
        return self.pending > self.MOST

    def feed(self, content: bytes) -> None:
        """Add bytes; b"" is the end."""
        with self._fed:
            self.ended = self.ended or not content
            skipped = min(self._skip, len(content))
            self._skip -= skipped
            if (new := content[skipped:]) and not self._closed:
                self.pending += len(new)
                if self._pieces and len(self._pieces[-1]) < _SMALL:
                    new = self._pieces.pop() + new
                self._pieces.append(new)
            self._fed.notify()
            self._on_fed()

    def listen(self, on_fed: Callable[[], object]) -> None:
        """Call ``on_fed`` on the feeding thread, and now; it must not wait."""
        with self._fed:
            self._on_fed = on_fed
            on_fed()

    def take(self, most: int, timeout: float | None = 0.0) -> bytes | None:
        """Return at most so many bytes, b"" at the end, None without any in ``timeout`` seconds (None: wait)."""
        with self._fed:
            if not self._fed.wait_for(lambda: self._pieces or self.ended or self._closed, timeout):
                return None
            was_behind = self.pending > self.MOST // 2
            taken, count = list[bytes](), 0
            while self._pieces and count < most:
                piece = self._pieces.popleft()
                if rest := piece[most - count :]:
                    self._pieces.appendleft(rest)
                taken.append(piece[: most - count])
                count += len(taken[-1])
            self.pending -= count
        if was_behind and self.pending <= self.MOST // 2:
            self._has_room()
        return b"".join(taken)

    def read(self, size: int, /) -> bytes:
        """Wait for ``size`` bytes and return them, fewer only at the end."""
        content = list[bytes]()
        while size > 0 and (piece := self.take(size, None)):
            content.append(piece)
            size -= len(piece)
        return b"".join(content)

    def close(self) -> None:
        """Drop all bytes, and those to come."""
        with self._fed:
            self._closed, self._on_fed, self.pending = True, bool, 0
            self._pieces.clear()
            self._fed.notify()
        self._has_room()


# from processes and sockets ------------------------------------------------------------------------


#: Bytes that may wait for a socket here before the supervisor is asked to send no more, and below which it may again.
_MOST, _LEAST = 4 * 1024 * 1024, 1024 * 1024


def watch(
    selector: selectors.BaseSelector, fd: int | socket.socket, event: int, call: Callable[[], None], *, enabled: bool
) -> None:
    """Call ``call`` when a descriptor is ready, or stop doing so."""
    watched = fd in selector.get_map()
    if enabled and not watched:
        selector.register(fd, event, call)
    elif watched and not enabled:
        selector.unregister(fd)


@dataclass(slots=True, eq=False)
class Source:
    """One descriptor and the channel that its bytes go to; ``open`` until its end was passed on.

    ``half`` is half of what it holds at least. One that is ``held`` is not read: the reader of its channel is behind.
    """

    fd: int
    channel: int
    half: int
    open: bool = True
    held: bool = False


class Channels:
    """All sources of the agent."""

    def __init__(self, selector: selectors.BaseSelector, outbox: Outbox) -> None:
        self._selector = selector
        self._outbox = outbox
        self._sources: list[Source] = []
        self._paused = False
        self._came = self._hurried = False
        self._pace = Pace()

    def open(self, channel: int) -> tuple[int, Source | None]:
        """Return a descriptor for a process to write to, and what reads it where that is done here."""
        read, write = os.pipe()
        return write, self.add(read, channel)

    def add(self, fd: int, channel: int) -> Source | None:
        """Read ``fd`` from now on, until it ends; what is read goes to the channel."""
        os.set_blocking(fd, False)
        # How many there will be is not known yet, and wide pipes of the first must not leave narrow ones for the last.
        source = Source(fd, channel, widen(fd, max(64, 4 * len(self._sources))) // 2)
        self._sources.append(source)
        self._watch(source)
        return source

    def _watch(self, source: Source) -> None:
        enabled = source.open and not (self._paused or source.held)
        call = functools.partial(self._read, source)
        watch(self._selector, source.fd, selectors.EVENT_READ, call, enabled=enabled)

    def regulate(self) -> None:
        """Stop reading when the outbox is full, continue when it has room."""
        paused = self._outbox.full or (self._paused and not self._outbox.room)
        if paused != self._paused:
            self._paused = paused
            for source in self._sources:
                self._watch(source)

    def hold(self, channel: int, *, held: bool) -> None:
        """Read nothing of a channel until it is no longer held, so that its writer waits."""
        for source in self._sources:
            if source.channel == channel:
                source.held = held
                self._watch(source)

    def pause(self) -> float:
        """Return the seconds until the sources are read again (see ``Pace``), after each round."""
        if self._came:
            self._pace.round(hurried=self._hurried)
        self._came = self._hurried = False
        return self._pace.pause()

    def _read(self, source: Source) -> None:
        # The round that filled the outbox may hold more readable sources.
        if not source.open or self._outbox.full:
            return
        try:
            content = os.read(source.fd, frames.PIECE)
        except BlockingIOError:
            return
        except OSError:  # a process has ended without reading all that was sent to it
            content = b""
        if content:
            self._outbox.put(frames.data(source.channel, content))
            self._came, self._hurried = True, self._hurried or len(content) >= min(source.half, frames.PIECE)
        else:
            self.end(source)

    def drain(self, source: Source) -> None:
        """Pass on what was written by now, however much the outbox holds."""
        left = waiting(source.fd) if source.open else 0
        while left > 0 and (content := os.read(source.fd, min(left, frames.PIECE))):
            self._outbox.put(frames.data(source.channel, content))
            left -= len(content)

    def drain_all(self) -> None:
        """Pass on what was written by now to any of them."""
        for source in list(self._sources):
            self.drain(source)

    def end(self, source: Source) -> None:
        """Send the end of the channel, and close the descriptor."""
        if source.open:
            self.drop(source)
            self._outbox.put(frames.data(source.channel, b""))

    def drop(self, source: Source) -> None:
        """Close the descriptor without sending the end."""
        if source.open:
            source.open = False
            self._sources.remove(source)
            self._watch(source)
            os.close(source.fd)

    def end_all(self) -> None:
        """Pass on what was written by now and end every channel."""
        for source in list(self._sources):
            self.drain(source)
            self.end(source)

    def discard_all(self) -> None:
        """Discard what was written by now: the supervisor is gone."""
        for source in self._sources:
            if left := waiting(source.fd):
                os.read(source.fd, left)


class Outgoing:
    """Writes what the supervisor sends on a channel into a socket of this host.

    Bytes that do not fit wait in memory, because an agent that stops reading would miss the end of the job.
    ``hold`` is called with ``held``: whether so much waits that nothing more should be sent on this channel.
    """

    behind = False

    def __init__(self, connection: socket.socket, selector: selectors.BaseSelector, hold: Callable[..., None]) -> None:
        self._socket = connection
        self._outbox = Outbox(connection.fileno())
        self._selector = selector
        self._hold = hold
        self._over = self._held = self._closed = False

    def feed(self, piece: bytes) -> None:
        """Add the next piece; b"" is the end."""
        if self._closed:
            return
        if piece:
            self._outbox.put(piece)
        else:
            self._over = True
        self._write()

    def _write(self) -> None:
        try:
            self._outbox.flush()
        except OSError:  # the other end is gone, which the reader of this socket notices
            self._outbox, self._over = Outbox(self._outbox.fd), True
        held = self._outbox.size > (_LEAST if self._held else _MOST)
        if held != self._held:
            self._held = held
            self._hold(held=held)
        watch(self._selector, self._socket, selectors.EVENT_WRITE, self._write, enabled=not self._outbox.empty)
        if self._over and self._outbox.empty:
            self._close()

    def _close(self) -> None:
        """End this direction; the other one is read elsewhere."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

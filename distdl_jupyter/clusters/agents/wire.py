"""Moves the streams of agents: frames in both directions, heartbeats, and the timeout of a silent host.

One asyncio loop in a thread of its own serves the links to all hosts, so they continue while the supervisor's thread
waits for Slurm or Azure. It waits neither for a host nor for the readers of ranks' output. The meaning of messages is
in ``connection``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from distdl_jupyter.node import frames
from distdl_jupyter.node.channels import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_READ = 256 * 1024
#: Bytes that may wait to be sent before a sender must wait.
_MOST_UNSENT = 4 * 1024 * 1024
#: Seconds between two looks whether slow readers have taken something.
_PAUSE = 0.02
_LAST_WORDS = 8192


# the loop -------------------------------------------------------------------------------------

_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()
_inherited: list[asyncio.AbstractEventLoop | None] = []


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all links of this process, which runs from the first call on."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_loop.run_forever, name="links", daemon=True).start()
        return _loop


def _in_child() -> None:
    """Let a forked child, which has no such thread, start a loop of its own when it needs one.

    The parent's loop is kept: closing it would change the list of its epoll, which both processes share.
    """
    global _loop, _starting
    _inherited.append(_loop)
    _loop, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_in_child)


async def read(fd: int) -> bytes:
    """Return what can be read from a descriptor that does not block, b"" at its end. Raises OSError."""
    loop_ = asyncio.get_running_loop()
    while True:
        await _ready(fd, loop_.add_reader, loop_.remove_reader)
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, _READ)


async def write(fd: int, content: bytes) -> None:
    """Write all of it to a descriptor that does not block. Raises OSError."""
    loop_, view = asyncio.get_running_loop(), memoryview(content)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await _ready(fd, loop_.add_writer, loop_.remove_writer)


async def _ready(fd: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    """Wait for a descriptor. It must not be closed meanwhile, because its number would be used again."""
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


# links ----------------------------------------------------------------------------------------


class Listener(Protocol):
    """Receives frames; called on the loop, so it must not wait."""

    def on_frame(self, frame: frames.Message | frames.Data) -> None:
        """Handle a frame."""

    def ended(self, why: str) -> None:
        """Handle the loss of the host; called once."""


class Link(ABC):
    """The byte streams of an agent, such as those of a process with pipes. Coroutines run on ``loop``."""

    #: Seconds between two heartbeats, and without a byte after which the host is lost.
    beat_seconds: ClassVar[float] = 1.0
    silence_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        #: The end of what was printed as errors.
        self.last_words = b""

    @property
    def code(self) -> int | None:
        """The agent's exit code, None while it runs or where a batch system handles it."""
        return None

    async def open(self) -> None:
        """Open the link; called once, before all other methods."""
        return

    @abstractmethod
    async def read(self) -> bytes:
        """Return what the agent has sent next, b"" at the end."""

    @abstractmethod
    async def write(self, content: bytes) -> None:
        """Send all of it. Raises OSError when the other side is gone."""

    @abstractmethod
    def close_input(self) -> None:
        """End what the agent reads; idempotent."""

    @abstractmethod
    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent's end, after ``grace`` seconds by force."""

    @abstractmethod
    async def why_ended(self, silent: float) -> str:
        """Return why its output ended, when no byte came for ``silent`` seconds."""

    async def close(self) -> None:
        """Close what is open."""
        self.close_input()

    def keep(self, errors: bytes) -> None:
        """Add text that was printed as errors."""
        self.last_words = (self.last_words + errors)[-_LAST_WORDS:]

    async def keep_errors(self, next_: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        """Keep the end of what ``next_`` returns, until that is b""."""
        with contextlib.suppress(OSError):
            while content := await next_():
                self.keep(content)

    @property
    def last_line(self) -> str:
        """The last line that was printed as errors, as ": says why", "" without one."""
        lines = [line.strip() for line in self.last_words.decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300].rstrip('.')}" if lines else ""


class Wire:
    """Moves the frames of one link: ``send`` queues them, the listener receives them. Any thread may call it."""

    def __init__(self, name: str, link: Link, first: bytes, listener: Listener) -> None:
        self._name = name
        self._listener = listener
        self._link = link
        self._reader = frames.Reader(greeting=True)
        self._unsent: deque[bytes] = deque([first] if first else [])
        self._unsent_bytes = len(first)
        self._lock = threading.Condition()
        self._inboxes: list[Inbox] = []
        self._received_at = time.monotonic()
        self._hurried = 0
        self._closing = False
        self._done = False
        self._begun = False
        #: Set when there is something to send, or to end.
        self._more = asyncio.Event()
        self._cut = asyncio.Event()
        self._ended = threading.Event()
        self.greeted = threading.Event()

    def start(self) -> None:
        """Start to move frames."""
        self._begun = True
        asyncio.run_coroutine_threadsafe(self._run(), loop())

    # for all threads --------------------------------------------------------------------------

    @property
    def output_tail(self) -> str:
        """Return the end of what ssh and the host printed outside of frames."""
        return (self._reader.before[-_LAST_WORDS:] + b"\n" + self._link.last_words).decode(errors="replace").strip()

    @property
    def before(self) -> bytes:
        """The bytes before the agent's greeting so far."""
        return self._reader.before

    @property
    def code(self) -> int | None:
        """The exit code of ssh, None while it runs; 255 is an error of ssh itself."""
        return self._link.code

    def send(self, content: bytes, *, wait: bool = False) -> bool:
        """Queue frames and return whether the host is there; ``wait`` until most of what was queued before is sent."""
        with self._lock:
            while wait and self._unsent_bytes > _MOST_UNSENT and not self._done:
                self._lock.wait(1.0)
            if self._done:
                return False
            self._unsent.append(content)
            self._unsent_bytes += len(content)
        loop().call_soon_threadsafe(self._more.set)
        return True

    def inbox(self, skip: int = 0) -> Inbox:
        """Return a new inbox; while much waits in all of them, nothing more is read from the host."""
        inbox = Inbox(skip)
        with self._lock:
            self._inboxes = [*(old for old in self._inboxes if old.pending or not old.ended), inbox]
        return inbox

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Bypass backpressure: the caller waits for an answer behind bytes that are not read."""
        with self._lock:
            self._hurried += 1
        try:
            yield
        finally:
            with self._lock:
                self._hurried -= 1

    def close(self, timeout: float = 5.0) -> None:
        """End what the agent reads, then the agent; idempotent."""
        self._closing = True
        if not self._begun:
            self.start()
        loop_ = loop()
        loop_.call_soon_threadsafe(self._more.set)
        if not self._ended.wait(timeout):
            loop_.call_soon_threadsafe(self._cut.set)
            self._ended.wait()

    # on the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            why = await self._moving()
        except frames.BrokenWire as error:
            why = f"{self._name} sent an invalid message: {error}"
        except Exception as error:  # noqa: BLE001  callers that wait for this host must get an answer
            why = f"The connection to {self._name} failed: {type(error).__name__}: {error}."
        try:
            await self._finish(why)
        finally:
            self._ended.set()

    async def _moving(self) -> str:
        """Move frames until the host is gone, and return why."""
        await self._link.open()
        sending = asyncio.create_task(self._send())
        ends = [asyncio.create_task(end) for end in (self._receive(), self._watch(), self._wait_for_cut())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return next(end.result() for end in ends if end.done())
        finally:
            for task in (sending, *ends):
                task.cancel()
            await asyncio.gather(sending, *ends, return_exceptions=True)

    async def _receive(self) -> str:
        """Pass on received frames; return why the output ended."""
        while True:
            while sum(inbox.pending for inbox in self._inboxes) > Inbox.MOST and not self._hurried:
                await asyncio.sleep(_PAUSE)
                self._received_at = time.monotonic()  # it is this side that does not read
            content = await self._link.read()
            if not content:
                return await self._link.why_ended(time.monotonic() - self._received_at)
            self._received_at = time.monotonic()
            for frame in self._reader.feed(content):
                self._listener.on_frame(frame)
            if self._reader.greeted:
                self.greeted.set()

    async def _send(self) -> None:
        with contextlib.suppress(OSError):  # the agent has ended, and its output shows why
            while self._unsent or not self._closing:
                if not self._unsent:
                    self._more.clear()
                    if not self._unsent and not self._closing:
                        await self._more.wait()
                    continue
                await self._link.write(self._unsent[0])
                with self._lock:
                    self._unsent_bytes -= len(self._unsent.popleft())
                    self._lock.notify_all()
        self._send_no_more()

    def _send_no_more(self) -> None:
        with self._lock:
            self._unsent.clear()
            self._unsent_bytes = 0
            self._lock.notify_all()
        self._link.close_input()

    async def _watch(self) -> str:
        """Send heartbeats; return when no byte came for too long."""
        while True:
            await asyncio.sleep(self._link.beat_seconds)
            if self._closing or not self.greeted.is_set():
                continue
            if not self._unsent:  # any queued frame is a heartbeat as well
                self.send(frames.message("beat"))
            if time.monotonic() - self._received_at > self._link.silence_seconds:
                return f"No response from {self._name} for {self._link.silence_seconds:.0f} s."

    async def _wait_for_cut(self) -> str:
        await self._cut.wait()
        return f"The connection to {self._name} was closed."

    async def _finish(self, why: str) -> None:
        self._send_no_more()
        await self._link.end()
        with self._lock:
            self._done = True
            self._lock.notify_all()
        self._listener.ended(why)
        await self._link.close()

"""The loop that moves the streams of agents, and the links that it reads and writes.

One asyncio loop in a thread of its own serves the links to all hosts, so they continue while the supervisor's thread
waits for Slurm or Azure. It waits neither for a host nor for the readers of ranks' output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

_READ = 256 * 1024
#: Bytes at the end of what was printed that are kept.
ERROR_TAIL = 8192


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


class Link(ABC):
    """The byte streams of an agent, such as those of a process with pipes. Coroutines run on ``loop``."""

    #: Seconds between two heartbeats, and without a byte after which the host is lost.
    beat_seconds: ClassVar[float] = 1.0
    silence_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        #: The end of what was printed as errors.
        self.error_tail = b""

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
        self.error_tail = (self.error_tail + errors)[-ERROR_TAIL:]

    async def keep_errors(self, next_: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        """Keep the end of what ``next_`` returns, until that is b""."""
        with contextlib.suppress(OSError):
            while content := await next_():
                self.keep(content)

    @property
    def last_line(self) -> str:
        """The last line that was printed as errors, as ": says why", "" without one."""
        lines = [line.strip() for line in self.error_tail.decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300].rstrip('.')}" if lines else ""

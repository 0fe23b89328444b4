"""The event loop that transfers the streams of agents, and the base class of links.

One asyncio loop in its own thread serves the links to all hosts, so transfers continue while the supervisor's thread
waits for Slurm or Azure. The loop never blocks on a host or on a reader of output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

#: The maximum number of bytes per read of an agent's output.
_READ_BYTES = 256 * 1024
#: The maximum number of bytes of error output to store; only its end is stored.
MAX_ERROR_BYTES = 8192

_loop: asyncio.AbstractEventLoop | None = None
_start_lock = threading.Lock()
_inherited_loops: list[asyncio.AbstractEventLoop | None] = []


def get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all links of this process; the first call starts it."""
    global _loop
    with _start_lock:
        if _loop is None:
            _loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_loop.run_forever, name="links", daemon=True).start()
        return _loop


def _reset_loop() -> None:
    """Reset the loop in a forked child, which does not inherit the thread; ``get_loop`` then starts a new one."""
    global _loop, _start_lock
    _inherited_loops.append(_loop)  # closing it would change its epoll set, which both processes share
    _loop, _start_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_loop)


async def read(fd: int) -> bytes:
    """Return available bytes of a non-blocking descriptor, or b"" at its end. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        await _wait_ready(fd, loop.add_reader, loop.remove_reader)
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, _READ_BYTES)


async def write(fd: int, content: bytes) -> None:
    """Write all bytes to a non-blocking descriptor. Raises OSError."""
    loop, view = asyncio.get_running_loop(), memoryview(content)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await _wait_ready(fd, loop.add_writer, loop.remove_writer)


async def _wait_ready(fd: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    """Wait until a descriptor is ready. It must not be closed meanwhile, because its number could be reused."""
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


class Link(ABC):
    """The byte streams of an agent, such as the pipes of a process. Coroutines run on ``get_loop``."""

    #: Seconds between two heartbeats, and seconds of idle time after which the host is lost.
    beat_seconds: ClassVar[float] = 1.0
    max_idle_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        #: The end of the error output.
        self.error_tail = b""
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        """The agent's exit code (255: unknown), or None while it runs or if a batch system handles it."""
        return self._code

    async def open(self) -> None:
        """Open the link; called once, before all other methods."""
        return

    @abstractmethod
    async def read(self) -> bytes:
        """Return the next output of the agent, or b"" at its end."""

    @abstractmethod
    async def write(self, content: bytes) -> None:
        """Send all bytes. Raises OSError if the agent has disconnected."""

    @abstractmethod
    def close_input(self) -> None:
        """Close the agent's input; idempotent."""

    @abstractmethod
    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent to exit; kill it after ``grace`` seconds."""

    @abstractmethod
    async def explain_end(self, idle_seconds: float) -> str:
        """Return the reason why the output ended, after ``idle_seconds`` without a byte."""

    async def close(self) -> None:
        """Close all streams."""
        self.close_input()

    def add_errors(self, content: bytes) -> None:
        """Append error output."""
        self.error_tail = (self.error_tail + content)[-MAX_ERROR_BYTES:]

    @property
    def last_line(self) -> str:
        """The last line of error output after ": ", or "" if there is none."""
        return format_last_line(self.error_tail.decode(errors="replace"))


def format_last_line(output: str) -> str:
    """Return the last line of an output after ": ", or "" if the output is empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f": {lines[-1][:300].rstrip('.')}" if lines else ""

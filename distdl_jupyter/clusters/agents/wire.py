"""The thread that keeps the streams of one host's agent moving: frames in and out, beats, silence.

Nothing here waits for anybody: not for the host, not for who reads what ranks print. It does not know what messages
mean; ``connection`` does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Protocol

from distdl_jupyter.node import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.clusters.agents.channels import PipeEnd

_TICK = 0.25
_READ = 256 * 1024
#: Bytes that may wait for slow readers before nothing more is read from the host.
_MOST_WAITING = 16 * 1024 * 1024
#: Bytes that may wait to be sent before a sender must wait.
_MOST_UNSENT = 4 * 1024 * 1024
_LAST_WORDS = 8192


class Listener(Protocol):
    """Hears what comes; called in the wire's own thread, so it must not wait."""

    def on_frame(self, frame: frames.Message | frames.Data) -> None:
        """Take a frame."""

    def ended(self, why: str) -> None:
        """The host is gone; called once."""


class Link(ABC):
    """What leads to an agent: a process with pipes, or what looks like one.

    ``source`` is its input, -1 once it was closed, ``out`` and ``err`` its outputs: descriptors that do not block.
    """

    source: int
    out: int
    err: int
    #: Seconds between two beats, and of silence after which the host is lost.
    beat_seconds: ClassVar[float] = 1.0
    silence_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        #: The end of what was printed as errors.
        self.last_words = b""

    @property
    @abstractmethod
    def code(self) -> int | None:
        """The exit code, None while it runs."""

    def listen_to_errors(self) -> bool:
        """Keep what was printed as errors; False when nothing more will come."""
        try:
            while content := os.read(self.err, _READ):
                self.last_words = (self.last_words + content)[-_LAST_WORDS:]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def last_line(self) -> str:
        """The last line that was printed as errors, as ": says why", "" without one."""
        lines = [line.strip() for line in self.last_words.decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300].rstrip('.')}" if lines else ""

    @abstractmethod
    def close_input(self) -> None:
        """End its input; idempotent."""

    @abstractmethod
    def reap(self, patience: float = 0.0) -> None:
        """Wait for its end, after ``patience`` seconds by force."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open of it."""

    @abstractmethod
    def why_ended(self, silent: float) -> str:
        """Return what the end of its output means, when nothing was heard for ``silent`` seconds."""


class Wire:
    """One link. ``start`` it, ``send`` frames; what comes goes to the listener."""

    def __init__(self, name: str, link: Link, first: bytes, listener: Listener) -> None:
        self._name = name
        self._listener = listener
        self._link = link
        self._reader = frames.Reader(greeting=True)
        self._unsent: deque[bytes] = deque([first])
        self._unsent_bytes = len(first)
        self._lock = threading.Condition()
        self._pipes: list[PipeEnd] = []
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._heard_at = self._beat_at = time.monotonic()
        self._hurried = 0
        self._closing = False
        self._done = False
        self.greeted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wire-{name}", daemon=True)

    def start(self) -> None:
        """Begin to move frames."""
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._link.err, selectors.EVENT_READ)
        self._thread.start()

    # for everybody ----------------------------------------------------------------------------

    @property
    def said(self) -> str:
        """The end of what ssh and the host said outside of frames."""
        return (self._reader.before[-_LAST_WORDS:] + b"\n" + self._link.last_words).decode(errors="replace").strip()

    @property
    def before(self) -> bytes:
        """What came in place of the agent's greeting so far."""
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
        self.wake()
        return True

    def add(self, pipe: PipeEnd) -> None:
        """Let a pipe be written whenever it takes something; without a host it ends at once."""
        with self._lock:
            if self._done:
                pipe.close()
            else:
                self._pipes.append(pipe)

    def wake(self) -> None:
        """Let the thread look at once."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full is awake, too
            if not self._done:
                os.write(self._wake_write, b"x")

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Read on whatever waits for readers: who holds this waits for an answer that stands behind it."""
        with self._lock:
            self._hurried += 1
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._hurried -= 1

    def close(self, patience: float = 5.0) -> None:
        """End the standard input of ssh, then ssh; idempotent."""
        self._closing = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(patience)
        self._link.reap()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        why = ""
        try:
            while not why:
                why = self._turn()
        except frames.BrokenWire as error:
            why = f"{self._name} sent what cannot be understood: {error}"
        except Exception as error:  # noqa: BLE001  whatever it is, who waits for this host must hear of it
            why = f"The connection to {self._name} failed here: {type(error).__name__}: {error}."
        self._finish(why)

    def _turn(self) -> str:
        """Move what can be moved; return why the host is gone, "" while it is there."""
        self._choose()
        ready = {key.fd for key, _ in self._selector.select(_TICK)}
        if self._wake_read in ready:
            self._drain(self._wake_read)
        if self._link.err in ready and not self._link.listen_to_errors():
            self._selector.unregister(self._link.err)
        if self._link.source in ready:
            self._write()
        for pipe in self._pipes:
            if pipe.fd in ready:
                pipe.write()
        ended = self._link.out in ready and self._read()
        self._beat()
        return self._link.why_ended(time.monotonic() - self._heard_at) if ended else self._silence()

    def _choose(self) -> None:
        """Tell the selector what is worth waiting for now."""
        self._close_done_pipes()
        waiting = sum(pipe.pending for pipe in self._pipes)
        paused = waiting > _MOST_WAITING and not self._hurried
        if paused:
            self._heard_at = time.monotonic()  # the silence is ours
        self._want(self._link.out, selectors.EVENT_READ, wanted=not paused)
        if self._closing and not self._unsent:
            self._close_input()
        self._want(self._link.source, selectors.EVENT_WRITE, wanted=bool(self._unsent))
        for pipe in self._pipes:
            self._want(pipe.fd, selectors.EVENT_WRITE, wanted=pipe.pending > 0)

    def _close_done_pipes(self) -> None:
        with self._lock:
            done = [pipe for pipe in self._pipes if pipe.done]
            self._pipes = [pipe for pipe in self._pipes if not pipe.done]
        for pipe in done:
            self._want(pipe.fd, selectors.EVENT_WRITE, wanted=False)
            pipe.close()

    def _want(self, fd: int, events: int, *, wanted: bool) -> None:
        known = fd >= 0 and fd in self._selector.get_map()
        if wanted and not known and fd >= 0:
            self._selector.register(fd, events)
        elif known and not wanted:
            self._selector.unregister(fd)

    def _drain(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fd, 4096):
                pass

    def _write(self) -> None:
        try:
            while self._unsent:
                written = os.write(self._link.source, self._unsent[0])
                with self._lock:
                    rest = self._unsent[0][written:]
                    self._unsent.popleft()
                    if rest:
                        self._unsent.appendleft(rest)
                    self._unsent_bytes -= written
                    self._lock.notify_all()
        except BlockingIOError:
            return
        except OSError:  # ssh has ended; its output tells
            self._close_input()

    def _close_input(self) -> None:
        with self._lock:
            self._unsent.clear()
            self._unsent_bytes = 0
            self._lock.notify_all()
        self._want(self._link.source, selectors.EVENT_WRITE, wanted=False)
        self._link.close_input()

    def _read(self) -> bool:
        """Hand on what came; True at the end."""
        try:
            content = os.read(self._link.out, _READ)
        except BlockingIOError:
            return False
        if content:
            self._heard_at = time.monotonic()
        for frame in self._reader.feed(content):
            self._listener.on_frame(frame)
        if self._reader.greeted:
            self.greeted.set()
        return not content

    def _beat(self) -> None:
        now = time.monotonic()
        if self.greeted.is_set() and now - self._beat_at >= self._link.beat_seconds and not self._closing:
            self._beat_at = now
            if not self._unsent:  # what waits to be sent is a sign of life itself
                self.send(frames.message("beat"))

    def _silence(self) -> str:
        silent = time.monotonic() - self._heard_at
        if self.greeted.is_set() and silent > self._link.silence_seconds and not self._closing:
            return f"{self._name} has not answered for {self._link.silence_seconds:.0f} s."
        return ""

    def _finish(self, why: str) -> None:
        self._close_input()
        self._link.reap()
        with self._lock:
            self._done = True
            self._lock.notify_all()
        self._listener.ended(why)
        self._flush_pipes()
        self._selector.close()
        self._link.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _flush_pipes(self) -> None:
        """Give slow readers what has come, as long as they read; then end every pipe."""
        for pipe in self._pipes:
            pipe.feed(b"")
        while not self._closing and any(not pipe.done for pipe in self._pipes):
            self._close_done_pipes()
            for pipe in self._pipes:
                pipe.write()
            time.sleep(0.02)
        for pipe in self._pipes:
            pipe.close()

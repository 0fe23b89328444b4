"""The agent: one loop on another host that serves one supervisor over a pair of byte streams.

It starts what it is told to, carries each process's output apart, hears each end exactly, and ends everything when
the supervisor is gone: at once when its input ends, after ``timeout`` seconds when nothing comes any more. The loop
never waits for anything but its descriptors; what takes long is done in threads.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.node import frames, pipes, processes, requests, workdir
from distdl_jupyter.node.channels import Channels, Outgoing, watch
from distdl_jupyter.node.job import Job
from distdl_jupyter.node.mpi_relay import Shells
from distdl_jupyter.node.outbox import Outbox
from distdl_jupyter.node.ports import Ports
from distdl_jupyter.node.tar_stream import Incoming
from distdl_jupyter.node.watchdog import Watchdog
from distdl_jupyter.node.workdir import Workdir

if TYPE_CHECKING:
    from distdl_jupyter.node.slots import Slot

#: Exit code where an agent cannot run (EX_UNAVAILABLE).
UNAVAILABLE = 69
#: Seconds between two looks at a process that has ended and whose last words are awaited.
_SOON = 0.05
#: Seconds in which the last answer must be taken.
_LAST = 5.0
#: Pieces that threads may have ready for the outbox.
_READY = 16


class Agent:
    """``source`` and ``sink`` are the descriptors to the supervisor."""

    #: Seconds between two signs of life.
    beat_seconds: ClassVar[float] = 1.0

    def __init__(self, source: int, sink: int, timeout: float, watchdog: Watchdog) -> None:
        self._source = source
        self._timeout = timeout
        self._watchdog = watchdog
        self._reader = frames.Reader(greeting=False)
        self._selector = selectors.DefaultSelector()
        self._urgent = selectors.DefaultSelector()
        self._outbox = Outbox(sink)
        self._posted: queue.Queue[bytes] = queue.Queue(_READY)
        self._incoming: dict[int, Incoming | Outgoing] = {}
        self._threads: set[threading.Thread] = set()
        self._kept: list[object] = []
        self._received_at = self._beaten = time.monotonic()
        #: Samples of what ranks use, which go with the next beat.
        self._samples: list[dict[str, Any]] = []
        self._over = False
        #: Whether SIGTERM has come.
        self.terminating = False
        self._writing = False
        self.channels = Channels(self._selector, self._outbox)
        self.shells = Shells(self._selector, self.send)
        self.ports = Ports()
        self.job: Job | None = None
        #: What the job holds of this machine.
        self.slot: Slot | None = None
        self._wake_read, self._wake_write = os.pipe()

    # for the requests -------------------------------------------------------------------------

    def begin(self, name: str, place: Workdir, base: str) -> None:
        """Begin the job; what an earlier supervisor had begun of it is ended. Raises OSError."""
        if self.job is not None:
            self.job.kill()
            self.job.clear(None)
        self.job = Job(name, place, self.channels, [self._watchdog.pid], base)
        run = self.job.pipes.folder
        self._watchdog.watch(self.job.marks, run, place.folder if place.copied else None, base)
        self.shells.listen(run / pipes.SOCKET)

    def later(self, fields: Mapping[str, Any], work: Callable[[], dict[str, Any]]) -> None:
        """Do ``work`` in a thread and answer the request with what it returns."""

        def answer() -> None:
            try:
                found = work()
            except Exception as error:  # noqa: BLE001  it is told to whoever asked
                found = requests.failure(str(fields["type"]), error)
            if (frame := _reply(fields, found)) is not None:
                self.post(frame)

        thread = threading.Thread(target=answer, daemon=True)
        self._threads.add(thread)
        thread.start()

    def post(self, frame: bytes) -> None:
        """Send frames from a thread; it waits while too much is under way."""
        self._posted.put(frame)
        self.wake()

    def wake(self) -> None:
        """Let the loop look around (from a thread or a signal handler)."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def keep(self, thing: object) -> None:
        """Hold something until the end."""
        self._kept.append(thing)

    def expect(self, channel: int, incoming: Incoming) -> None:
        """Give what comes on a channel to ``incoming``."""
        self._incoming[channel] = incoming

    def join(self, channel: int, connection: socket.socket) -> None:
        """Let a channel and a socket of this host be one connection, until either end ends it."""
        self.channels.add(connection.dup().detach(), channel)
        hold = functools.partial(self.send, "hold", channel=channel)
        self._incoming[channel] = Outgoing(connection, self._selector, hold)

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message."""
        self._outbox.put(frames.message(type_, **fields))

    def finish(self, *, keep: bool) -> None:
        """Leave the loop after this round; the copied folder stays with ``keep``."""
        self._over = True
        if self.job is not None:
            self.job.clear(None if keep else workdir.remove)
        self._give_back()

    # the loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end and return the exit code: 0 when it was ended in order."""
        self._prepare_signals()
        self._outbox.put(frames.GREETING)
        try:
            self._flush()
            while not self._over:
                self._round()
            self._say_the_last()
        except _Forsaken:
            self._give_up()
            return 1
        except BaseException:
            self._give_up()
            raise
        finally:
            self._watchdog.dismiss()
        return 0

    def _prepare_signals(self) -> None:
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._urgent.register(self._wake_read, selectors.EVENT_READ)
        self._urgent.register(self._source, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Handlers and not SIG_IGN: what is ignored would be ignored by ranks and launchers too.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, *_: object) -> None:
        self.terminating = True

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _round(self) -> None:
        self._listen()
        self._rest()
        for key, _ in self._selector.select(self._pause()):
            key.data()
        self._take_posted()
        self._send_exits()
        self._sample()
        self._beat()
        self._flush()
        self.channels.regulate()
        if self.is_forsaken():
            raise _Forsaken

    def is_forsaken(self) -> bool:
        """Say whether to end everything: a signal asked for it, or the supervisor has been silent for too long."""
        return self.terminating or self.silence > self._timeout

    @property
    def silence(self) -> float:
        """Seconds since the supervisor was last heard."""
        return time.monotonic() - self._received_at

    def _rest(self) -> None:
        """Leave ranks that print all the time alone for a moment; the supervisor and ends of processes are heard."""
        pause = self.channels.pause()
        if pause and not self._writing:
            self._urgent.select(pause)

    def _pause(self) -> float:
        if self.terminating or (self.job is not None and self.job.draining):
            return _SOON
        now = time.monotonic()
        sample = self.job.sample_due(now) if self.job is not None else math.inf
        return max(0.0, min(self._beaten + self.beat_seconds - now, sample))

    def _listen(self) -> None:
        """Read what the supervisor sends, unless the disk cannot keep up with it."""
        wanted = not any(incoming.behind for incoming in self._incoming.values())
        if not wanted:
            self._received_at = time.monotonic()
        watch(self._selector, self._source, selectors.EVENT_READ, self._receive, wanted=wanted)

    def _receive(self) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = os.read(self._source, 256 * 1024)
        if not content:
            raise _Forsaken
        self._received_at = time.monotonic()
        for frame in self._reader.feed(content):
            if isinstance(frame, frames.Data):
                self._take(frame)
            else:
                self._handle(frame.data)

    def _take(self, frame: frames.Data) -> None:
        incoming = self._incoming.get(frame.channel)
        if incoming is not None:
            incoming.give(frame.bytes)
            if not frame.bytes:
                del self._incoming[frame.channel]

    def _handle(self, fields: dict[str, Any]) -> None:
        if fields["type"] == "beat" or self._over:
            return
        found = requests.answer(self, fields)
        if found is not None and (frame := _reply(fields, found)) is not None:
            self._outbox.put(frame)

    def _take_posted(self) -> None:
        while not self._outbox.full:
            try:
                self._outbox.put(self._posted.get_nowait())
            except queue.Empty:
                return

    def _send_exits(self) -> None:
        if self.job is None or self._over:
            return
        for fields in self.job.ended(full=self._outbox.full):
            self.send("exit", **fields)
            self.process_ended(fields)
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if not self._threads:
            self.job.reap_adopted()

    def process_ended(self, end: Mapping[str, Any]) -> None:
        """Take the end of a process that this agent had started, which the supervisor is told."""
        return

    def _sample(self) -> None:
        if self.job is not None and (found := self.job.sample()) is not None:
            self._samples.append(found)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= self.beat_seconds:
            self._beaten = now
            if self.slot is not None and self.slot.holds:
                self.slot.beat()
            if self._samples and not self._outbox.full:
                self.send("resources", samples=self._samples)
            self._samples = []
            self._outbox.urge(frames.message("beat", alive=self.job.count() if self.job is not None else 0))

    def _flush(self) -> None:
        try:
            self._outbox.flush()
        except OSError:
            raise _Forsaken from None
        self._writing = not self._outbox.empty
        watch(self._selector, self._outbox.fd, selectors.EVENT_WRITE, lambda: None, wanted=self._writing)

    # the end ----------------------------------------------------------------------------------

    def _say_the_last(self) -> None:
        until = time.monotonic() + _LAST
        while not self._outbox.empty and time.monotonic() < until:
            self._flush()
            time.sleep(_SOON if self._writing else 0)

    def _give_up(self) -> None:
        if self.job is not None:
            self.job.give_up()
            self.job.clear(workdir.abandon)
        self._give_back()

    def _give_back(self) -> None:
        if self.slot is not None:
            self.slot.release()


def serve(build: Callable[[Watchdog], Agent]) -> int:
    """Prepare this process for an agent, let it serve to its end, and return the exit code."""
    if sys.platform != "linux":
        sys.stderr.write(f"Ranks run only on Linux hosts, but this host runs {sys.platform}. Choose another host.\n")
        return UNAVAILABLE
    # What starts the agent may block signals, and its ranks would inherit that (signal(7)).
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    watchdog = Watchdog()
    processes.adopt_orphans()
    return build(watchdog).run()


class _Forsaken(Exception):
    """Nobody is there any more whom the agent serves."""


def _reply(fields: Mapping[str, Any], found: dict[str, Any]) -> bytes | None:
    """Return the answer to a request as a frame, None when it has no number."""
    if fields.get("request") is None:
        return None
    try:
        return frames.message("reply", **{**found, "request": fields["request"]})
    except (TypeError, ValueError) as error:
        return frames.message("reply", request=fields["request"], error=f"The reply cannot be sent: {error}.")

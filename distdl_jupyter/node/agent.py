"""The agent: one loop on another host that serves one supervisor over a pair of byte streams.

It starts processes, sends the output of each on a separate channel, and reports the exit of each. It stops everything
when the supervisor is gone: at once when its input ends, or after ``timeout`` seconds without a message. The loop only
waits on its descriptors; threads do slow work. If the agent itself is killed, its watchdog cleans up: a tiny process,
forked before the agent does anything else, that only waits for the end of a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import queue
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.node import data_cache, files, frames, processes, requests, run_dir
from distdl_jupyter.node.channels import Channels, Outbox, Outgoing, watch
from distdl_jupyter.node.files import Incoming, Workdir
from distdl_jupyter.node.job import Job
from distdl_jupyter.node.mpi_shell import Shells
from distdl_jupyter.node.ports import Ports

if TYPE_CHECKING:
    from distdl_jupyter.node.slots import QueueSlot


_GOODBYE = "goodbye"


class Watchdog:
    """Starts the watchdog and holds the pipe to it. Raises OSError if it cannot be forked."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _watch(read)
        os.close(read)

    def watch(self, marks: Mapping[str, str], run: Path, copied: Path | None, base: str = "") -> None:
        """Set the marks of the processes to kill, and the private, copied and staged folders to remove."""
        self._say({"marks": dict(marks), "run": str(run), "copied": str(copied) if copied else None, "base": base})

    def dismiss(self) -> None:
        """Stop the watchdog and wait for its exit."""
        self._say(_GOODBYE)
        os.close(self._write)
        os.waitpid(self.pid, 0)

    def _say(self, content: Any) -> None:
        os.write(self._write, json.dumps(content).encode() + b"\n")


def _watch(read: int) -> None:
    """Run in the forked child: never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _close_others(read)
        with open(3, encoding="utf-8") as pipe:
            messages = [json.loads(line) for line in pipe]
        if messages and messages[-1] != _GOODBYE:
            _end(messages[-1])
    finally:
        os._exit(0)


def _close_others(read: int) -> None:
    """Move ``read`` to descriptor 3 and close all others, because an open copy would keep the connection open."""
    os.dup2(read, 3)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(4, 65_536)


def _end(job: dict[str, Any]) -> None:
    processes.kill_all(lambda: processes.of_job(job["marks"]), timeout=10.0)
    shutil.rmtree(job["run"], ignore_errors=True)
    data_cache.forget(job["marks"]["DISTDL_JOB_ID"], job["base"] or files.DEFAULT_BASE)
    if job["copied"]:
        files.abandon(Path(job["copied"]))


# the loop ------------------------------------------------------------------------------------------


#: Exit code where an agent cannot run (EX_UNAVAILABLE).
UNAVAILABLE = 69
#: Seconds between two checks for the last output of a process that has exited.
_SOON = 0.05
#: Timeout in seconds for sending the last response.
_LAST = 5.0
#: Maximum length of the queue through which threads send frames to the loop.
_READY = 16


class Agent:
    """Serves one supervisor: reads its requests from descriptor ``source`` and writes to descriptor ``sink``."""

    #: Seconds between two heartbeats.
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
        self._received_at = self._beaten = time.monotonic()
        #: Resource samples to send with the next heartbeat.
        self._samples: list[dict[str, Any]] = []
        self._over = False
        #: Whether SIGTERM was received.
        self.terminating = False
        self._writing = False
        self.channels = Channels(self._selector, self._outbox)
        self.shells = Shells(self._selector, self.send)
        self.ports = Ports()
        self.job: Job | None = None
        #: The resources of this machine that the job holds.
        self.slot: QueueSlot | None = None
        self._wake_read, self._wake_write = os.pipe()

    # called by request handlers ----------------------------------------------------------------

    def begin(self, name: str, workdir: Workdir, base: str) -> None:
        """Begin the job, and stop the processes that an earlier supervisor has left. Raises OSError."""
        if self.job is not None:
            self.job.kill()
            self.job.clear(None)
        self.job = Job(name, workdir, self.channels, [self._watchdog.pid], base)
        run = self.job.pipes.folder
        self._watchdog.watch(self.job.marks, run, workdir.folder if workdir.copied else None, base)
        self.shells.listen(run / run_dir.SOCKET)

    def later(self, fields: Mapping[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Run ``work`` in a thread and send its result as the response."""

        def run() -> None:
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001  it becomes the response
                answer = requests.failure(str(fields["type"]), error)
            if (frame := _reply(fields, answer)) is not None:
                self.post(frame)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()
        return None

    def post(self, frame: bytes) -> None:
        """Send frames from a thread; blocks while the outbox is full."""
        self._posted.put(frame)
        self.wake()

    def wake(self) -> None:
        """Wake the loop (from a thread or a signal handler)."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def expect(self, channel: int, incoming: Incoming) -> None:
        """Pass data received on a channel to ``incoming``."""
        self._incoming[channel] = incoming

    def join(self, channel: int, connection: socket.socket) -> None:
        """Relay between a channel and a local socket until either end closes."""
        self.channels.add(connection.dup().detach(), channel)
        hold = functools.partial(self.send, "hold", channel=channel)
        self._incoming[channel] = Outgoing(connection, self._selector, hold)

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message."""
        self._outbox.put(frames.message(type_, **fields))

    def finish(self, *, keep: bool) -> None:
        """Exit after this round; ``keep`` keeps the copied folder."""
        self._over = True
        if self.job is not None:
            self.job.clear(None if keep else files.remove)
        self._release()

    # the loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end and return the exit code: 0 for an orderly end."""
        self._prepare_signals()
        self._outbox.put(frames.GREETING)
        try:
            self._flush()
            while not self._over:
                self._round()
            self._send_rest()
        except SupervisorLost:
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
        # Use handlers, not SIG_IGN, which ranks and launchers would inherit.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self.terminating = True

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _round(self) -> None:
        self._watch_source()
        self._rest()
        for key, _ in self._selector.select(self._pause()):
            key.data()
        self._take_posted()
        self._send_exits()
        self._sample()
        self._beat()
        self._flush()
        self.channels.regulate()
        if self.is_over():
            raise SupervisorLost

    def is_over(self) -> bool:
        """Return whether to stop everything: on a signal, or when the supervisor has timed out."""
        return self.terminating or self.silence > self._timeout

    @property
    def silence(self) -> float:
        """Seconds since the last message of the supervisor."""
        return time.monotonic() - self._received_at

    def _rest(self) -> None:
        """Pause before reading busy ranks again; requests and process exits interrupt the pause."""
        pause = self.channels.pause()
        if pause and not self._writing:
            self._urgent.select(pause)

    def _pause(self) -> float:
        if self.terminating or (self.job is not None and self.job.draining):
            return _SOON
        now = time.monotonic()
        sample = self.job.sample_due(now) if self.job is not None else math.inf
        return max(0.0, min(self._beaten + self.beat_seconds - now, sample))

    def _watch_source(self) -> None:
        """Read from the supervisor, unless the disk cannot keep up."""
        readable = not any(incoming.behind for incoming in self._incoming.values())
        if not readable:
            self._received_at = time.monotonic()
        watch(self._selector, self._source, selectors.EVENT_READ, self._receive, enabled=readable)

    def _receive(self) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = os.read(self._source, 256 * 1024)
        if not content:
            raise SupervisorLost
        self._received_at = time.monotonic()
        for frame in self._reader.feed(content):
            if isinstance(frame, frames.Data):
                self._take(frame)
            else:
                self._handle(frame.data)

    def _take(self, frame: frames.Data) -> None:
        incoming = self._incoming.get(frame.channel)
        if incoming is not None:
            incoming.feed(frame.bytes)
            if not frame.bytes:
                del self._incoming[frame.channel]

    def _handle(self, fields: dict[str, Any]) -> None:
        if fields["type"] == "beat" or self._over:
            return
        answer = requests.answer(self, fields)
        if answer is not None and (frame := _reply(fields, answer)) is not None:
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
        """Handle the exit of a process, after it was reported to the supervisor."""
        return

    def _sample(self) -> None:
        if self.job is not None and (sample := self.job.sample()) is not None:
            self._samples.append(sample)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= self.beat_seconds:
            self._beaten = now
            if self.slot is not None and self.slot.holds:
                self.slot.beat()
            if self._samples and not self._outbox.full:
                self.send("resources", samples=self._samples)
            self._samples = []
            self._outbox.put_urgent(frames.message("beat", alive=self.job.count() if self.job is not None else 0))

    def _flush(self) -> None:
        try:
            self._outbox.flush()
        except OSError:
            raise SupervisorLost from None
        self._writing = not self._outbox.empty
        watch(self._selector, self._outbox.fd, selectors.EVENT_WRITE, lambda: None, enabled=self._writing)

    # the end ----------------------------------------------------------------------------------

    def _send_rest(self) -> None:
        until = time.monotonic() + _LAST
        while not self._outbox.empty and time.monotonic() < until:
            self._flush()
            time.sleep(_SOON if self._writing else 0)

    def _give_up(self) -> None:
        if self.job is not None:
            self.job.give_up()
            self.job.clear(files.abandon)
        self._release()

    def _release(self) -> None:
        if self.slot is not None:
            self.slot.release()


def serve(build: Callable[[Watchdog], Agent]) -> int:
    """Prepare this process, run an agent in it, and return the exit code."""
    if sys.platform != "linux":
        sys.stderr.write(f"Ranks run only on Linux hosts, but this host runs {sys.platform}. Choose another host.\n")
        return UNAVAILABLE
    # The agent's parent may block signals, and ranks would inherit the mask (signal(7)).
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    watchdog = Watchdog()
    processes.adopt_orphans()
    return build(watchdog).run()


class SupervisorLost(Exception):
    """The supervisor is gone; exit."""


def _reply(fields: Mapping[str, Any], answer: dict[str, Any]) -> bytes | None:
    """Return the response to a request as a frame, None if the request has no number."""
    if fields.get("request") is None:
        return None
    try:
        return frames.message("reply", **{**answer, "request": fields["request"]})
    except (TypeError, ValueError) as error:
        return frames.message("reply", request=fields["request"], error=f"The reply cannot be sent: {error}.")

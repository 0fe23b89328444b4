"""The bytes of an agent that is reached through files (``node.folder``), and any other file that grows, as a pipe."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.clusters.agents.wire import Link
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import folder, frames
from distdl_jupyter.node.folder import Follower

#: Seconds after the end of a job in which the last that was written on a node may still become visible here.
GRACE_SECONDS = 3.0
#: Seconds between two looks whether what was sent has been read.
_PAUSE = 0.2
#: Seconds in which an agent reads what an earlier supervisor has sent.
_TAKEOVER_SECONDS = 60.0
_PIECE = 1 << 20


class Tail(threading.Thread):
    """Writes what is appended to a file into the pipe ``fd``; closes that some seconds after ``is_over`` says so."""

    def __init__(self, path: Path, fd: int, is_over: Callable[[], object], position: int = 0) -> None:
        super().__init__(name=f"tail-{path.name}", daemon=True)
        self._file = Follower(path, position)
        self._fd = fd
        self._is_over = is_over
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        """Follow the file."""
        over_since: float | None = None
        with contextlib.suppress(BrokenPipeError):  # the reader wants no more
            while True:
                content = b""
                with contextlib.suppress(OSError):  # a file server that is away comes back
                    content = self._file.read()
                self._pass_on(content)
                if content:
                    continue
                if self._stopping.is_set():
                    break
                if over_since is None and self._is_over():
                    over_since = time.monotonic()
                if over_since is not None and time.monotonic() - over_since > GRACE_SECONDS:
                    break
                self._stopping.wait(self._file.pause)
        os.close(self._fd)

    def _pass_on(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            count = os.write(self._fd, view)
            self._file.took(count)
            view = view[count:]

    def stop(self) -> None:
        """Pass on what is there and end."""
        self._stopping.set()


class FolderLink(Link):
    """The link to the agent of one node. ``why_lost`` says why the node is gone, "" while it is there.

    With ``takeover`` an earlier supervisor has begun; what it had sent is read by the agent first. Raises LaunchFailed.
    """

    beat_seconds = folder.BEAT_SECONDS
    #: The batch system says when a node is lost; a file server may be away for minutes.
    silence_seconds = math.inf

    def __init__(self, run: Path, node: int, why_lost: Callable[[], str], *, takeover: bool = False) -> None:
        super().__init__()
        inbox, read, outbox = folder.files(node)
        self._inbox, self._read = run / inbox, run / read
        self._why_lost = why_lost
        #: Bytes that were sent to the agent so far, by an earlier supervisor too.
        self.sent = self._await_reader() if takeover else 0
        #: Up to where what was sent has been overwritten.
        self._forgotten = 0
        unsent, self.source = os.pipe()
        self.out, received = os.pipe()
        self.err, said = os.pipe()
        os.close(said)  # what the agent prints goes to the job's own output
        for fd in (self.source, self.out, self.err):
            os.set_blocking(fd, False)
        threading.Thread(target=self._send, args=(unsent,), name=f"send-{node}", daemon=True).start()
        self._tail = Tail(run / outbox, received, why_lost)

    def _await_reader(self) -> int:
        """Wait until the agent has read all whole frames, cut off half a one, and return where the next one goes."""
        until = time.monotonic() + _TAKEOVER_SECONDS
        while True:
            at = self._count_read()
            with self._inbox.open("rb+") as file:
                file.seek(at)
                if not frames.whole(file.read()):
                    file.truncate(at)
                    return at
            if self._why_lost():
                return self._inbox.stat().st_size  # nobody reads it any more; what it has said can still be read
            if time.monotonic() > until:
                raise LaunchFailed(f"The agent that is reached by {self._inbox} does not read what it is sent.")
            time.sleep(_PAUSE)

    def _count_read(self) -> int:
        try:
            return int(self._read.read_text(encoding="ascii") or 0)
        except (OSError, ValueError):
            return 0

    def _send(self, fd: int) -> None:
        """Append what is to be sent, and forget what was read: it may hold what nobody else should see."""
        with os.fdopen(fd, "rb", buffering=0) as unsent:
            while True:
                if not select.select([unsent], [], [], _PAUSE if self._forgotten < self.sent else None)[0]:
                    self._forget()
                elif content := unsent.read(_PIECE):
                    self._put(self.sent, content)
                    self.sent += len(content)
                else:
                    return

    def _put(self, at: int, content: bytes) -> None:
        """Write bytes at a place of the file; the job goes on while the disk is full or the file server is away."""
        while content and not self._why_lost():
            try:
                descriptor = os.open(self._inbox, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    count = os.pwrite(descriptor, content, at)
                finally:
                    os.close(descriptor)
                at, content = at + count, content[count:]
            except OSError:
                time.sleep(_PAUSE)

    def _forget(self) -> None:
        read = min(self._count_read(), self.sent)
        if read > self._forgotten:
            self._put(self._forgotten, bytes(read - self._forgotten))
            self._forgotten = read

    @property
    def code(self) -> int | None:
        """None: the agent's exit code is the batch system's affair."""
        return None

    def close_input(self) -> None:
        """Send no more, and listen to nothing more; idempotent."""
        if self.source >= 0:
            os.close(self.source)
            self.source = -1
        self._tail.stop()

    def reap(self, patience: float = 0.0) -> None:
        """Do nothing: the batch system takes the agent away."""

    def close(self) -> None:
        """Close what is open of it."""
        self.close_input()
        for fd in (self.out, self.err):
            with contextlib.suppress(OSError):
                os.close(fd)

    def why_ended(self, _silent: float) -> str:
        """Return why nothing more comes."""
        return self._why_lost() or "The agent has ended."

"""An agent that is reached through files: on nodes that a batch system gives, which share a folder with the supervisor.

``python -m distdl_jupyter.node.folder FOLDER NODE`` serves node number NODE. The frames lie in three files, which are
there before the job begins, because a network file system shows a change of a known file at once and a new file after
up to half a minute:

=============== =====================================================================================================
``node-N.in``   what the supervisor sends; it overwrites with zeros what was read, which may hold a signature
``node-N.read`` how many bytes of it were read, always up to the end of a frame
``node-N.out``  what the agent sends, kept for a supervisor that takes the job over
=============== =====================================================================================================

The job continues without a supervisor, and its node is released when the ranks have ended. A rank that fails
writes its exit code into ``failed``, which ends the ranks of other nodes when no supervisor does. Something in
``warned`` says that the batch system ends the job soon: ranks that handle SIGUSR1 get it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.node import frames, job
from distdl_jupyter.node.agent import Agent, serve
from distdl_jupyter.node.job import RANK
from distdl_jupyter.node.processes import signal_number

#: Seconds without a word from the supervisor after which the node is given back: before ranks were started, and after
#: their ends.
TIMEOUT, _LEAVE = 60.0, 20.0
#: Seconds between two signs of life, from both sides: each is a write to a file that machines share.
BEAT_SECONDS = 5.0
#: The file in which the exit code of the rank that failed first is written down.
FAILED = "failed"
#: The file into which the batch script writes that the job will be ended soon.
WARNED = "warned"
#: Seconds between two looks at it, and at ranks that began to handle the signal later.
_WARN_SECONDS = 1.0
#: Seconds that ranks may run after another one has failed, when no supervisor ends them.
_FAILED_TIMEOUT = 60.0
#: Seconds between two looks at a file: while something comes, and the most.
_SOON, _LATER = 0.02, 0.2
#: Seconds of silence after which looks become rarer.
_BUSY = 2.0
#: Seconds before a write that a full disk has refused is tried again.
_FULL = 1.0
#: Seconds in which the last frames must be written.
_LAST = 10.0
_PIECE = 1 << 20


def files(node: int) -> tuple[str, str, str]:
    """Return the names of a node's files: to the agent, how much it has read, from the agent."""
    return f"node-{node}.in", f"node-{node}.read", f"node-{node}.out"


class Follower:
    """Reads a file that another machine appends to, from ``position`` on.

    The file is opened anew for each look: a network file system shows what others have written only then.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path = path
        self.position = position
        self._came_at = time.monotonic()

    def read(self, most: int = _PIECE) -> bytes:
        """Return what is new, b"" when nothing is. Raises OSError."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(descriptor, most, self.position)
        finally:
            os.close(descriptor)
        return content

    def took(self, count: int) -> None:
        """Go on behind the next ``count`` bytes."""
        self.position += count
        self._came_at = time.monotonic()

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return _SOON if time.monotonic() - self._came_at < _BUSY else _LATER


class _Mailbox:
    """The files of one node, as two descriptors for the agent."""

    def __init__(self, folder: Path, node: int) -> None:
        inbox, self._read, outbox = (folder / name for name in files(node))
        self._inbox = Follower(inbox)
        self._warning = Follower(folder / WARNED)
        self._check_at = 0.0
        #: Whether the job will be ended soon; ``wake`` is called about once a second from then on.
        self.is_warned = False
        self.wake: Callable[[], object] = bool
        self._out = os.open(outbox, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.source, self._to_agent = os.pipe()
        self._from_agent, self.sink = os.pipe()
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        self._sender = threading.Thread(target=self._send, name="send", daemon=True)
        self._sender.start()

    def _receive(self) -> None:
        """Pass on whole frames: a supervisor that is killed may leave half of one, which the next one cuts off."""
        most = _PIECE
        while True:
            content = b""
            with contextlib.suppress(OSError):  # a file server that is away comes back
                content = self._inbox.read(most)
            count = frames.whole(content)
            _write(self._to_agent, content[:count])
            if count:
                self._inbox.took(count)
                self._note()
                most = _PIECE
            elif len(content) == most:
                most *= 2
                continue
            self._check_warning()
            time.sleep(self._inbox.pause)

    def _check_warning(self) -> None:
        if (now := time.monotonic()) < self._check_at:
            return
        self._check_at = now + _WARN_SECONDS
        with contextlib.suppress(OSError):
            self.is_warned = self.is_warned or bool(self._warning.read(1))
        if self.is_warned:
            self.wake()

    def _note(self) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._read, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, b"%020d" % self._inbox.position, 0)
            finally:
                os.close(descriptor)

    def _send(self) -> None:
        while content := os.read(self._from_agent, _PIECE):
            _write(self._out, content)

    def close(self) -> None:
        """Write what the agent has sent last."""
        os.close(self.sink)
        self._sender.join(_LAST)


def _write(fd: int, content: bytes) -> None:
    """Write all of it; a full disk is waited for, because it is no reason to end a rank."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            time.sleep(_FULL)


class FolderAgent(Agent):
    """The agent of a job that outlives its supervisor."""

    beat_seconds: ClassVar[float] = BEAT_SECONDS

    def __init__(self, folder: Path, mailbox: _Mailbox, watchdog: Any) -> None:
        super().__init__(mailbox.source, mailbox.sink, TIMEOUT, watchdog)
        self._mailbox = mailbox
        mailbox.wake = self.wake
        self._failed = folder / FAILED
        #: Whether the warning was reported to the supervisor.
        self._has_reported_warning = False
        self._warn_at = 0.0
        #: Whether SIGTERM was passed on to the ranks.
        self._passed_on = False

    def is_over(self) -> bool:
        """Return whether to end everything: without a supervisor when the ranks have ended or others have failed.

        SIGTERM is the batch system's, which ends the job soon. Ranks get it, and their ends are still reported.
        """
        if self._mailbox.is_warned and self.job is not None:
            self._warn(self.job)
        if self.terminating:
            return self._has_ended_after_term()
        if self.job is not None and self.job.any_started:
            if self.silence <= _LEAVE:
                return False
            return (self.job.count() == 0 and not self.job.unreported) or self._others_failed()
        return self.silence > TIMEOUT

    def _warn(self, its: job.Job) -> None:
        if (now := time.monotonic()) < self._warn_at:
            return
        self._warn_at = now + _WARN_SECONDS
        self._report_warning(its)
        its.warn()

    def _report_warning(self, its: job.Job) -> None:
        if its.any_started and not self._has_reported_warning:
            self._has_reported_warning = True
            self.send("warned")

    def _has_ended_after_term(self) -> bool:
        if self.job is None:
            return True
        if not self._passed_on:
            self._passed_on = True
            self._report_warning(self.job)
            self.job.signal("TERM", "all")
        return self.job.count() == 0 and not self.job.unreported

    def _others_failed(self) -> bool:
        try:
            status = self._failed.stat()
        except OSError:
            return False
        return status.st_size > 0 and time.time() - status.st_mtime > _FAILED_TIMEOUT

    def process_ended(self, end: Mapping[str, Any]) -> None:
        """Write down the code of a rank that has failed first, with which the batch system ends the job."""
        assert self.job is not None, "a process has ended"
        code = 128 + signal_number(end["signal"]) if end["signal"] else int(end["code"])
        if code and end["kind"] == RANK and not self.job.signaled:
            with contextlib.suppress(OSError):
                if self._failed.stat().st_size == 0:
                    self._failed.write_text(str(code), encoding="utf-8")


def main(folder: Path, node: int) -> int:
    """Serve the supervisor at the files of a node and return the exit code."""
    mailboxes: list[_Mailbox] = []

    def build(watchdog: Any) -> Agent:
        # Threads come after the watchdog, which is forked.
        mailboxes.append(_Mailbox(folder, node))
        return FolderAgent(folder, mailboxes[0], watchdog)

    code = serve(build)
    for mailbox in mailboxes:
        mailbox.close()
    return code


if __name__ == "__main__":
    ended = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    os._exit(ended)  # threads that wait for a disk or a host must not hold up the end

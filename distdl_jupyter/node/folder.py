"""An agent that communicates through files, on nodes of a batch system that share a folder with the supervisor.

``python -m distdl_jupyter.node.folder FOLDER NODE`` serves node number NODE. Frames are exchanged through three files
that exist before the job starts, because a network file system shows a change of a known file immediately, but a new
file after up to half a minute:

=============== =====================================================================================================
``node-N.in``   frames from the supervisor, overwritten with zeros once read, as they may contain a signature
``node-N.read`` the number of bytes read from it, always up to the end of a frame
``node-N.out``  frames from the agent, kept for a supervisor that takes over the job
=============== =====================================================================================================

The job continues without a supervisor, and its node is released when the ranks have exited. The exit code of a failed
rank is written to ``failed``, which stops the ranks of other nodes if no supervisor does. Content in ``warned`` means
that the batch system will stop the job soon; ranks with a handler for SIGUSR1 then receive that signal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.node import channels, job
from distdl_jupyter.node.agent import Agent, Watchdog, serve
from distdl_jupyter.node.job import RANK
from distdl_jupyter.node.processes import get_signal_number

#: Seconds without a message from the supervisor after which the node is released before ranks were started.
TIMEOUT_SECONDS = 60.0
#: Seconds without a message from the supervisor after which the node is released when the ranks have exited.
_LEAVE_SECONDS = 20.0
#: Seconds between two heartbeats of either side; each is a write to a shared file.
BEAT_SECONDS = 5.0
#: The file with the exit code of the first failed rank.
FAILED_FILE = "failed"
#: The file to which the batch script writes that the job will be stopped soon.
WARNED_FILE = "warned"
#: Seconds between two checks of that file, and of ranks for a handler that was installed later.
_WARN_SECONDS = 1.0
#: Seconds that ranks may run after another rank has failed, if no supervisor stops them.
_FAILURE_SECONDS = 60.0
#: Polling interval of a file in seconds: while it grows, and otherwise.
_FAST_POLL_SECONDS, _SLOW_POLL_SECONDS = 0.02, 0.2
#: Seconds without data after which polling slows down.
_BUSY_SECONDS = 2.0
#: Seconds before a write is retried on a full disk.
_RETRY_SECONDS = 1.0
#: Timeout in seconds for writing the last frames.
_FLUSH_SECONDS = 10.0
_CHUNK_BYTES = 1 << 20


def get_file_names(node: int) -> tuple[str, str, str]:
    """Return the names of a node's files: input, number of bytes read, output."""
    return f"node-{node}.in", f"node-{node}.read", f"node-{node}.out"


class FileFollower:
    """Reads a file that another machine appends to, from ``position`` onwards.

    The file is opened for each read, because a network file system shows changes by others only then.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path = path
        self.position = position
        self._grew_at = time.monotonic()

    def read(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        """Return new bytes, or b"" if there are none. Raises OSError."""
        with self._path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), max_bytes, self.position)

    def advance(self, count: int) -> None:
        """Advance the position by ``count`` bytes."""
        self.position += count
        self._grew_at = time.monotonic()

    @property
    def pause(self) -> float:
        """Seconds until the next read."""
        return _FAST_POLL_SECONDS if time.monotonic() - self._grew_at < _BUSY_SECONDS else _SLOW_POLL_SECONDS


def _write(fd: int, content: bytes) -> None:
    """Write all bytes. Retry after an error, because a full disk must not end the ranks."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            time.sleep(_RETRY_SECONDS)


class FolderAgent(Agent):
    """The agent of a job that outlives its supervisor. Two threads connect it to the files of its node with pipes."""

    beat_seconds: ClassVar[float] = BEAT_SECONDS

    def __init__(self, folder: Path, node: int, watchdog: Watchdog) -> None:
        inbox, self._read_path, outbox = (folder / name for name in get_file_names(node))
        self._inbox = FileFollower(inbox)
        self._warning = FileFollower(folder / WARNED_FILE)
        self._failed_path = folder / FAILED_FILE
        #: Whether the job will end soon, and whether that was reported to the supervisor.
        self._is_warned = self._has_reported_warning = False
        self._warn_at = 0.0
        #: Whether SIGTERM was forwarded to the ranks.
        self._has_forwarded = False
        out_fd = os.open(outbox, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        source, self._to_agent = os.pipe()
        from_agent, self._sink = os.pipe()
        super().__init__(source, self._sink, TIMEOUT_SECONDS, watchdog)
        threading.Thread(target=self._read_inbox, name="receive", daemon=True).start()
        self._sender = threading.Thread(target=self._write_outbox, args=(from_agent, out_fd), name="send", daemon=True)
        self._sender.start()

    def run(self) -> int:
        """Serve until the end, write the last frames, and return the exit code."""
        try:
            return super().run()
        finally:
            os.close(self._sink)
            self._sender.join(_FLUSH_SECONDS)

    def _read_inbox(self) -> None:
        """Forward complete frames: a killed supervisor may leave half a frame, which the next supervisor truncates."""
        max_bytes, check_at = _CHUNK_BYTES, 0.0
        while True:
            content = b""
            with contextlib.suppress(OSError):  # the file server may recover
                content = self._inbox.read(max_bytes)
            count = channels.measure_complete(content)
            _write(self._to_agent, content[:count])
            if count:
                self._inbox.advance(count)
                with contextlib.suppress(OSError), self._read_path.open("r+b", buffering=0) as file:
                    file.write(b"%020d" % self._inbox.position)
                max_bytes = _CHUNK_BYTES
            elif len(content) == max_bytes:
                max_bytes *= 2
                continue
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + _WARN_SECONDS
                with contextlib.suppress(OSError):
                    self._is_warned = self._is_warned or bool(self._warning.read(1))
                if self._is_warned:
                    self.wake()
            time.sleep(self._inbox.pause)

    def _write_outbox(self, from_agent: int, out_fd: int) -> None:
        while content := os.read(from_agent, _CHUNK_BYTES):
            _write(out_fd, content)

    def should_stop(self) -> bool:
        """Return whether to stop: there is no supervisor, and the ranks have exited or ranks elsewhere have failed.

        SIGTERM comes from the batch system, which ends the job soon. Ranks receive it too; their exits are reported.
        """
        active_job, now = self.job, time.monotonic()
        if active_job is not None and self._is_warned and now >= self._warn_at:
            self._warn_at = now + _WARN_SECONDS
            self._report_warning(active_job)
            active_job.warn_ranks()
        if self.is_terminating and active_job is not None and not self._has_forwarded:
            self._has_forwarded = True
            self._report_warning(active_job)
            active_job.signal("TERM", "all")
        if active_job is None or not (active_job.has_started or self.is_terminating):
            return self.is_terminating or self.idle_seconds > TIMEOUT_SECONDS
        if not self.is_terminating and self.idle_seconds <= _LEAVE_SECONDS:
            return False
        if not active_job.has_unreported_exits and not active_job.find_living():
            return True
        with contextlib.suppress(OSError):
            status = self._failed_path.stat()
            has_failed = status.st_size > 0 and time.time() - status.st_mtime > _FAILURE_SECONDS
            return has_failed and not self.is_terminating
        return False

    def _report_warning(self, active_job: job.Job) -> None:
        if active_job.has_started and not self._has_reported_warning:
            self._has_reported_warning = True
            self.send("warned")

    def on_exit(self, fields: Mapping[str, Any]) -> None:
        """Record the exit code of the first failed rank, with which the batch system ends the job."""
        assert self.job is not None, "a process has ended"
        code = 128 + get_signal_number(fields["signal"]) if fields["signal"] else int(fields["code"])
        if code and fields["kind"] == RANK and not self.job.was_signaled:
            with contextlib.suppress(OSError):
                if self._failed_path.stat().st_size == 0:
                    self._failed_path.write_text(str(code), encoding="utf-8")


if __name__ == "__main__":
    serve(lambda watchdog: FolderAgent(Path(sys.argv[1]), int(sys.argv[2]), watchdog))

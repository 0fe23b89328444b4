"""Writes a job's log to a disk that may be full: buffers failed writes in memory and notifies the user.

A full disk must not end a training run of many hours. The ranks continue, and their output is buffered in memory. If
the buffer is full, new log lines and progress are dropped, and the dropped lines are counted; status and metrics are
still buffered. The notes about this in the job's log use disk space that was reserved in advance.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from distdl_jupyter.core import files
from distdl_jupyter.core.events import VERSION, Event, encode, get_size
from distdl_jupyter.core.humanize import duration, plural
from distdl_jupyter.core.logfile import EventWriter, LineFile
from distdl_jupyter.core.store import JobFolder

#: Size of the buffer in bytes at which log lines and progress are dropped.
_MAX_BUFFER_BYTES = 4_000_000
_DROPPABLE_TYPES = ("log", "progress")
#: Seconds between retries.
_RETRY_SECONDS = 0.5
#: The beginning of a frequent event. The reserve has no space for these events, only for the outcome of the job.
_FREQUENT_PATTERN = re.compile(rb'\{"v":\d+,"t":[^,"]+,"type":"(log|count|progress|metric)"')
#: The codes of the notes when the disk is full and when it is writable again.
_FULL, _WRITABLE = "disk-full", "disk-writable"
#: Seconds that an ended job waits until its whole buffer can be written, and then until at least its end can.
_BUFFER_WAIT_SECONDS, _END_WAIT_SECONDS = 10.0, 600.0


class BufferedEventWriter(EventWriter):
    """An ``EventWriter`` that buffers events instead of raising OSError. ``fold`` receives the notes about the disk."""

    def __init__(self, folder: JobFolder, fold: Callable[[Event], None]) -> None:
        super().__init__(folder.events)
        self._folder = folder
        self._fold = fold
        files.hold_reserve(folder.reserve)
        #: Maximum size of a file in bytes, and the part of it that is reserved for the end of the job.
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self._limit = math.inf if limit == resource.RLIM_INFINITY else limit
        self._reserved = min(files.RESERVE_BYTES, self._limit / 2)
        self._buffer: deque[tuple[LineFile, bytes]] = deque()
        self._buffer_bytes = 0
        self._retry_at = 0.0
        #: The error of failing writes (None while they succeed), its epoch time, and whether a note was written.
        self._error: OSError | None = None
        self._failed_since = 0.0
        self._has_noted = False
        #: Number of dropped log lines and metric events.
        self._dropped_lines = self._dropped_metrics = 0

    def begin_part(self, **counts: Any) -> bool:
        """Start a new part, unless writes fail. Return whether it was started."""
        if self._error is None:
            with contextlib.suppress(OSError):
                return super().begin_part(**counts)
        return False

    def should_drop(self, type_: str, fields: dict[str, Any]) -> bool:
        """Return whether an event is dropped because the buffer is full, and count it if so."""
        if self._error is None or type_ not in _DROPPABLE_TYPES or self._buffer_bytes < _MAX_BUFFER_BYTES:
            return False
        self._dropped_lines += fields["text"].count("\n") + 1 if type_ == "log" else 0
        return True

    def append_lines(self, file: LineFile, lines: bytes) -> None:
        """Append complete encoded lines, or add them to the end of the buffer."""
        self._buffer.append((file, lines))
        self._buffer_bytes += len(lines)
        if self._error is None and not self._write_buffer():
            self._failed_since = time.time()

    def _write_buffer(self) -> bool:
        """Write the buffer, except for the space reserved for the end. Return whether all of it was written."""
        while self._buffer:
            file, lines = self._buffer[0]
            available = self._limit - self._reserved - (file.size - file.begin)
            size = len(lines)
            if size > available:
                size = lines.rfind(b"\n", 0, max(0, int(available))) + 1
            try:
                file.append(lines[:size])
                self._error = OSError(errno.EFBIG, os.strerror(errno.EFBIG)) if size < len(lines) else None
            except OSError as error:
                self._error = error
            self._buffer_bytes -= file.bytes_written
            if self._error is not None:
                self._buffer[0] = (file, lines[file.bytes_written :])
                return False
            self._buffer.popleft()
        self._error = None
        return True

    def check(self) -> None:
        """Retry failed writes periodically. Write a note when writes start to fail, and when they succeed again."""
        if self._error is not None and not self._has_noted:
            self._has_noted = True
            problem = f"The job's folder {self._folder.path} cannot be written ({self._error.strerror})."
            self._note("warning", f"{problem} Training continues, but its log is paused. Free space there.", _FULL)
        if self._error is None or time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        # The reserve must be restored in full before anything else is written.
        if files.hold_reserve(self._folder.reserve) and self._write_buffer():
            self._has_noted = False
            elapsed = duration(time.time() - self._failed_since)
            self._note("info", f"The job's folder could not be written for {elapsed}. {self._format_loss()}", _WRITABLE)
            self._dropped_lines = self._dropped_metrics = 0

    def finish(self) -> bool:
        """Write the end of the job before the log is closed. Return whether the log is complete."""
        if self._error is None:
            return True
        self.check()
        largest_size = max(file.size - file.begin for file in (self.events, self.log))
        if self._buffer_bytes <= min(get_size(self._folder.reserve) // 2, self._limit - largest_size):
            self._release_reserve()
        if self._wait(_BUFFER_WAIT_SECONDS):
            if self._has_noted and (self._dropped_lines or self._dropped_metrics):
                self._note("warning", self._format_loss(), _WRITABLE)
            return True
        lines = [(file, line) for file, lines in self._buffer for line in lines.splitlines(keepends=True)]
        dropped = Counter(match[1] for _, line in lines if (match := _FREQUENT_PATTERN.match(line)))
        self._dropped_lines, self._dropped_metrics = self._dropped_lines + dropped[b"log"], dropped[b"metric"]
        self._buffer = deque((file, line) for file, line in lines if not _FREQUENT_PATTERN.match(line))
        self._buffer_bytes = sum(len(line) for _, line in self._buffer)
        self._note("warning", f"The last part of the job's log could not be written. {self._format_loss()}", _WRITABLE)
        self._release_reserve()
        if not self._wait(_END_WAIT_SECONDS):
            print(f"Cannot write the end of the job log: {self._error}.", file=sys.stderr)  # noqa: T201 - supervisor.log
        return False

    def _release_reserve(self) -> None:
        files.free_reserve(self._folder.reserve)
        self._reserved = 0.0

    def _wait(self, seconds: float) -> bool:
        """Retry for some seconds, or once if the file is at its size limit. Return whether the buffer was written."""
        is_at_limit = self._error is not None and self._error.errno == errno.EFBIG
        deadline = time.monotonic() + (0.0 if is_at_limit else seconds)
        while self._error is not None and not self._write_buffer() and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
        return self._error is None

    def _format_loss(self) -> str:
        if not self._dropped_lines and not self._dropped_metrics:
            return "Nothing was lost."
        metrics = f" and {plural(self._dropped_metrics, 'report')} of metrics" if self._dropped_metrics else ""
        return f"{plural(self._dropped_lines, 'line')} of the log{metrics} were lost. Training was not affected."

    def _note(self, level: str, text: str, code: str) -> None:
        """Write a note before the buffered events, using the reserved space."""
        event = {"v": VERSION, "t": round(time.time(), 4), "type": "note", "level": level, "text": text, "code": code}
        if self._error is None:
            self.put([event])
        else:
            lines = encode(event)
            files.free_half_reserve(self._folder.reserve)
            try:
                self.events.append(lines)
            except OSError:
                self._buffer.appendleft((self.events, lines[self.events.bytes_written :]))
                self._buffer_bytes += len(lines) - self.events.bytes_written
        self._fold(event)

    def close(self) -> None:
        """Close the file and release the reserve."""
        files.free_reserve(self._folder.reserve)
        super().close()

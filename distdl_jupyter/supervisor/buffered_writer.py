"""A job's log on a disk that may be full: what the disk refuses waits in memory, and notes tell the user.

A training of many hours must not die because another user filled the disk. So the ranks go on: what they print is held
here, up to a limit; beyond it lines of the log are left out first, metrics only much later, and how the job went never.
The notes about it reach the user by the job's own log, into room that was kept for them.
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
from collections import deque
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import disk_reserve
from distdl_jupyter.core.events import VERSION, EventWriter, encode
from distdl_jupyter.core.humanize import duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from distdl_jupyter.core.events import Event, LineFile
    from distdl_jupyter.core.store import JobFolder

#: Bytes that may be held before events of a type are left out; what is not here is always kept.
_MOST_HELD = {"log": 4_000_000, "progress": 4_000_000, "metric": 32_000_000}
#: Seconds between two tries.
_RETRY_SECONDS = 0.5
_MANY = re.compile(rb'\{"v":\d+,"t":[^,"]+,"type":"(?:log|count|progress|metrics?)"')
#: The codes of the notes that the disk is full, and that it takes what is written again.
FULL, ROOM = "disk-full", "disk-room"
#: Seconds for which a job that has ended waits for room for all that is held, and then for its end alone.
_WAIT_FOR_ALL, _WAIT_FOR_END = 10.0, 600.0


class BufferedEventWriter(EventWriter):
    """An ``EventWriter`` that raises no OSError for what it appends."""

    def __init__(self, folder: JobFolder) -> None:
        super().__init__(folder.events)
        self._reserve = folder.reserve
        disk_reserve.hold(self._reserve)
        #: Bytes that the file may have, and how many of them are kept for the end as the reserve's are.
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self._limit = math.inf if limit == resource.RLIM_INFINITY else limit
        self._kept_free = min(disk_reserve.SIZE, self._limit / 2)
        self._held: deque[tuple[LineFile, bytes]] = deque()
        self._held_bytes = 0
        self._retry_at = 0.0
        #: Why the disk takes nothing now, None while it does.
        self.refused: OSError | None = None
        #: Epoch seconds since when.
        self.since = 0.0

    def begin_part(self, **counts: Any) -> bool:
        """Go on in another part; on a disk that takes nothing the log goes on where it is."""
        if self.refused is None:
            with contextlib.suppress(OSError):
                return super().begin_part(**counts)
        return False

    def takes(self, type_: str) -> bool:
        """Say whether an event of this type is kept now."""
        return self.refused is None or self._held_bytes < _MOST_HELD.get(type_, self._held_bytes + 1)

    def append_lines(self, file: LineFile, lines: bytes) -> None:
        """Append whole encoded lines, or hold them behind those that wait already."""
        if self.refused is None:
            try:
                self._append(file, lines)
            except OSError as error:
                self.refused, self.since, lines = error, time.time(), lines[file.taken :]
            else:
                return
        if lines:
            self._held.append((file, lines))
            self._held_bytes += len(lines)

    def _append(self, file: LineFile, lines: bytes) -> None:
        """Append as many of the lines as leave free what is kept of the size that the file may have."""
        room = self._limit - self._kept_free - file.part_size
        if len(lines) <= room:
            file.append(lines)
            return
        file.append(lines[: lines.rfind(b"\n", 0, max(0, int(room))) + 1])
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    def write_first(self, lines: bytes) -> None:
        """Write events before those that wait, into room that was kept for this."""
        disk_reserve.give_half(self._reserve)
        try:
            self.events.append(lines)
        except OSError:
            self._held.appendleft((self.events, lines[self.events.taken :]))
            self._held_bytes += len(lines) - self.events.taken

    def retry(self) -> bool:
        """Try from time to time to write what waits; True when the disk takes everything again.

        What is kept for the end is never used up by this: it has to be there in full before anything else is written.
        """
        if self.refused is None or time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        return disk_reserve.hold(self._reserve) and self._write_held()

    def _write_held(self) -> bool:
        while self._held:
            file, lines = self._held[0]
            try:
                self._append(file, lines)
            except OSError as error:
                self.refused = error
                self._held[0], self._held_bytes = (file, lines[file.taken :]), self._held_bytes - file.taken
                return False
            self._held_bytes -= len(self._held.popleft()[1])
        self.refused = None
        return True

    @property
    def fits_reserve(self) -> bool:
        """Whether all that waits goes into the room that is kept for the end."""
        longest = max(self.events.part_size, self.log.part_size)
        return self._held_bytes <= min(disk_reserve.left(self._reserve) // 2, self._limit - longest)

    def release_reserve(self) -> None:
        """Give all of the room that was kept for the end."""
        disk_reserve.give(self._reserve)
        self._kept_free = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait for the disk; True when nothing waits any more. A file at its own limit is not waited for."""
        at_its_limit = self.refused is not None and self.refused.errno == errno.EFBIG
        until = time.monotonic() + (0.0 if at_its_limit else seconds)
        while self.refused is not None and not self._write_held():
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_RETRY_SECONDS, left))
        return True

    def drop_many(self) -> tuple[int, int]:
        """Keep of what waits only how it went; return how many events of the log and of metrics are left out."""
        held = [(file, line) for file, lines in self._held for line in lines.splitlines(keepends=True)]
        kept = [(file, line) for file, line in held if not _MANY.match(line)]
        logs = sum(b'"type":"log"' in line[:60] for _, line in held)
        metrics = sum(b'"type":"metric' in line[:60] for _, line in held)
        self._held, self._held_bytes = deque(kept), sum(len(line) for _, line in kept)
        return logs, metrics

    def close(self) -> None:
        """Close the file and give the room back."""
        disk_reserve.give(self._reserve)
        super().close()


class DiskFullMonitor:
    """Says which events are left out while the disk is full, and writes notes about it, which ``fold`` gets too."""

    def __init__(self, writer: BufferedEventWriter, path: Path, fold: Callable[[Event], None]) -> None:
        self._writer = writer
        self._path = path
        self._fold = fold
        self._reported = False
        self._lines = self._metrics = 0

    def drops(self, type_: str, fields: dict[str, Any]) -> bool:
        """Say whether an event is left out, and count it then."""
        if self._writer.takes(type_):
            return False
        self._lines += fields["text"].count("\n") + 1 if type_ == "log" else 0
        self._metrics += type_ == "metric"
        return True

    def check(self) -> None:
        """Note, once, that the disk is full, retry from time to time, and note when that is over."""
        writer = self._writer
        if writer.refused is None:
            return
        if not self._reported:
            self._reported = True
            self._note("warning", f"The job's folder {self._path} cannot be written ({writer.refused.strerror}). "
                "Training continues, but its log is on hold. Free space there.", FULL)  # fmt: skip
        if writer.retry():
            self._reported = False
            self._note("info", f"The job's folder could not be written for {duration(time.time() - writer.since)}. "
                f"{self._losses()}", ROOM)  # fmt: skip
            self._lines = self._metrics = 0

    def finish(self) -> bool:
        """Get the end onto the disk before the log is closed; False when what stands there is not all of it."""
        if self._writer.refused is None:
            return True
        self.check()
        if self._writer.fits_reserve:
            self._writer.release_reserve()
        if self._writer.wait(_WAIT_FOR_ALL):
            self._report_losses()
            return True
        lines, metrics = self._writer.drop_many()
        self._lines, self._metrics = self._lines + lines, self._metrics + metrics
        self._note("warning", f"The last part of the job's log could not be written. {self._losses()}", ROOM)
        self._writer.release_reserve()
        if not self._writer.wait(_WAIT_FOR_END):
            reason = self._writer.refused
            print(f"The end of the job cannot be written: {reason}.", file=sys.stderr)  # noqa: T201 - supervisor.log
        return False

    def _report_losses(self) -> None:
        """Note what was left out although everything that waited has been written."""
        if self._reported and (self._lines or self._metrics):
            self._note("warning", self._losses(), ROOM)

    def _losses(self) -> str:
        if not self._lines and not self._metrics:
            return "Nothing was lost."
        metrics = f" and {plural(self._metrics, 'report')} of metrics" if self._metrics else ""
        return f"{plural(self._lines, 'line')} of the log{metrics} were lost. Training was not affected."

    def _note(self, level: str, text: str, code: str) -> None:
        event = {"v": VERSION, "t": round(time.time(), 4), "type": "note", "level": level, "text": text, "code": code}
        if self._writer.refused is None:
            self._writer.put([event])
        else:
            self._writer.write_first(encode(event))
        self._fold(event)

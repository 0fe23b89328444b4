"""A job's log on a disk that may be full: what it refuses waits in memory until it takes it.

A training of many hours must not die because somebody else filled the disk. So the ranks go on: what they say is held
here, up to a limit; beyond it lines of the log are left out first, metrics only much later, and how it went never.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import reserve
from distdl_jupyter.core.events import EventWriter

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder

#: Bytes that may be held before events of a type are left out; what is not here is always kept.
_MOST = {"log": 4_000_000, "progress": 4_000_000, "metric": 32_000_000}
#: Seconds between two tries.
_AGAIN = 0.5
_MANY = re.compile(rb'\{"v":\d+,"t":[^,"]+,"type":"(?:log|progress|metrics?)"')


class PatientWriter(EventWriter):
    """An ``EventWriter`` that raises no OSError for what it appends."""

    def __init__(self, folder: JobFolder) -> None:
        super().__init__(folder.events)
        self._reserve = folder.reserve
        reserve.hold(self._reserve)
        #: Bytes that the file may have, and how many of them are kept for the end as the reserve's are.
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self._limit = math.inf if limit == resource.RLIM_INFINITY else limit
        self._kept = min(reserve.SIZE, self._limit / 2)
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._next = 0.0
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
        return self.refused is None or self._bytes < _MOST.get(type_, self._bytes + 1)

    def append(self, lines: bytes) -> None:
        """Append whole encoded lines, or hold them behind those that wait already."""
        if self.refused is None:
            try:
                self._append(lines)
            except OSError as error:
                self.refused, self.since, lines = error, time.time(), lines[self.taken :]
            else:
                return
        self._hold(lines)

    def _append(self, lines: bytes) -> None:
        """Append as many of the lines as leave free what is kept of the size that the file may have."""
        room = self._limit - self._kept - self.part_size
        if len(lines) <= room:
            super().append(lines)
            return
        super().append(lines[: lines.rfind(b"\n", 0, max(0, int(room))) + 1])
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    def _hold(self, lines: bytes) -> None:
        if lines:
            self._held.append(lines)
            self._bytes += len(lines)

    def first(self, lines: bytes) -> None:
        """Write lines before those that wait, into room that was kept for this."""
        reserve.give_half(self._reserve)
        try:
            super().append(lines)
        except OSError:
            self._held.appendleft(lines[self.taken :])
            self._bytes += len(lines) - self.taken

    def retry(self) -> bool:
        """Try from time to time to write what waits; True when the disk takes everything again.

        What is kept for the end is never used up by this: it has to be there in full before anything else is written.
        """
        if self.refused is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _AGAIN
        return reserve.hold(self._reserve) and self._write_held()

    def _write_held(self) -> bool:
        while self._held:
            try:
                self._append(self._held[0])
            except OSError as error:
                self.refused = error
                self._held[0], self._bytes = self._held[0][self.taken :], self._bytes - self.taken
                return False
            self._bytes -= len(self._held.popleft())
        self.refused = None
        return True

    @property
    def fits(self) -> bool:
        """Whether all that waits goes into the room that is kept for the end."""
        return self._bytes <= min(reserve.left(self._reserve) // 2, self._limit - self.part_size)

    def give(self) -> None:
        """Give all of the room that was kept for the end."""
        reserve.give(self._reserve)
        self._kept = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait for the disk; True when nothing waits any more. Nobody can give room to a file at its limit."""
        at_its_limit = self.refused is not None and self.refused.errno == errno.EFBIG
        until = time.monotonic() + (0.0 if at_its_limit else seconds)
        while self.refused is not None and not self._write_held():
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_AGAIN, left))
        return True

    def leave_out_many(self) -> tuple[int, int]:
        """Keep of what waits only how it went; return how many events of the log and of metrics are left out."""
        lines = b"".join(self._held).splitlines(keepends=True)
        kept = b"".join(line for line in lines if not _MANY.match(line))
        logs = sum(b'"type":"log"' in line[:60] for line in lines)
        metrics = sum(b'"type":"metric' in line[:60] for line in lines)
        self._held, self._bytes = deque([kept] if kept else []), len(kept)
        return logs, metrics

    def close(self) -> None:
        """Close the file and give the room back."""
        reserve.give(self._reserve)
        super().close()

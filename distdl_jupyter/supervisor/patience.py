"""A job's log on a disk that may be full: what it refuses waits in memory until it takes it.

A training of many hours must not die because somebody else filled the disk. So the ranks go on: what they say is held
here, up to a limit; beyond it lines of the log are left out first, metrics only much later, and how it went never.
"""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING

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
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._next = 0.0
        #: Why the disk takes nothing now, None while it does.
        self.refused: OSError | None = None
        #: Epoch seconds since when.
        self.since = 0.0

    def takes(self, type_: str) -> bool:
        """Say whether an event of this type is kept now."""
        return self.refused is None or self._bytes < _MOST.get(type_, self._bytes + 1)

    def append(self, lines: bytes) -> None:
        """Append whole encoded lines, or hold them behind those that wait already."""
        if self.refused is None:
            try:
                super().append(lines)
            except OSError as error:
                self.refused, self.since, lines = error, time.time(), lines[self.taken :]
            else:
                return
        self._hold(lines)

    def _hold(self, lines: bytes) -> None:
        if lines:
            self._held.append(lines)
            self._bytes += len(lines)

    def first(self, lines: bytes) -> None:
        """Put lines before those that wait, into room that was kept for this."""
        reserve.give_half(self._reserve)
        self._held.appendleft(lines)
        self._bytes += len(lines)
        self._next = 0.0

    def retry(self) -> bool:
        """Try from time to time to write what waits; True when the disk takes everything again."""
        if self.refused is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _AGAIN
        while self._held:
            try:
                super().append(self._held[0])
            except OSError as error:
                self.refused = error
                self._held[0], self._bytes = self._held[0][self.taken :], self._bytes - self.taken
                return False
            self._bytes -= len(self._held.popleft())
        self.refused = None
        reserve.hold(self._reserve)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for the disk, with all of the room that was held for the end; True when nothing waits any more."""
        reserve.give(self._reserve)
        until = time.monotonic() + seconds
        while self.refused is not None and time.monotonic() < until:
            self._next = 0.0
            if not self.retry():
                time.sleep(min(_AGAIN, max(0.0, until - time.monotonic())))
        return self.refused is None

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

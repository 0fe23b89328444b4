"""Reads every stream of a run and hands over log texts and reports, in the order in which they were written.

It keeps no state of the job; what a report means is decided by its ``sink``. Each round reads every stream that has
something once, so that none waits for another's flood; what a process wrote stays in its pipe until then, and a pipe
that holds much lets it write on.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING, Protocol

from distdl_jupyter.host import flow
from distdl_jupyter.supervisor.lines import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from distdl_jupyter.clusters.base import Stream
    from distdl_jupyter.supervisor.items import Item

#: Bytes that are read of one stream in a round, and of all of them together where there are many.
_READ, _ROUND = 1024 * 1024, 8 * 1024 * 1024
#: Seconds between two looks at lines without an end: one that is met again is shown as it stands.
_PENDING_AFTER = 0.2
#: Seconds for the last words of streams that somebody still holds open.
_LAST = 1.0


class Sink(Protocol):
    """Takes what a stream said."""

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Take items of one stream, in order."""


class Pump:
    """Reads the streams of one run without ever blocking on a single one. ``safe_end``: see ``LineSplitter``."""

    def __init__(
        self, streams: Iterable[Stream], nonce: str, sink: Sink, *, safe_end: Callable[[str], int] | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakes = selectors.DefaultSelector()
        self._sink = sink
        self._splitters: dict[int, LineSplitter] = {}
        self._half: dict[int, int] = {}
        self._looked = time.monotonic()
        self._pace = flow.Pace()
        streams = tuple(streams)
        self._nonce = nonce
        self._safe_end = safe_end
        self._most = max(flow.LEAST, min(_READ, _ROUND // max(1, len(streams))))
        self.add(streams)

    def add(self, streams: Iterable[Stream]) -> None:
        """Read these streams too; those that are known are left out."""
        new = [stream for stream in streams if stream.fd not in self._splitters]
        count = len(self._splitters) + len(new)
        for stream in new:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
            self._splitters[stream.fd] = LineSplitter(
                self._nonce if stream.rank is not None else "", in_order=stream.start is not None,
                safe_end=self._safe_end,
            )  # fmt: skip
            self._half[stream.fd] = flow.widen(stream.fd, count) // 2

    def watch(self, fd: int) -> None:
        """Let ``run`` return early when ``fd`` becomes readable (a wake-up pipe)."""
        self._selector.register(fd, selectors.EVENT_READ, None)
        self._wakes.register(fd, selectors.EVENT_READ, None)

    def run(self, seconds: float) -> bool:
        """Read what comes within ``seconds``, returning after the first readable round. True when something came.

        Streams that are written to all the time are read in rounds with pauses between: many small reads would take
        from the ranks the processor that they need. Only a wake-up ends a pause.
        """
        pause = self._pace.pause()
        if pause:
            self._wakes.select(pause)
        came, much = 0, False
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                _empty(key.fd)
            else:
                count = self._read(key.data, self._most)
                came, much = came + count, much or count >= self._half[key.fd]
        if came:
            self._pace.round(hurried=much)
        if time.monotonic() - self._looked > _PENDING_AFTER:
            self._show_pending()
        return came > 0

    def drain(self) -> bool:
        """Read what was written by now, however much is written meanwhile. True when something was."""
        came = 0
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                left = flow.waiting(key.fd)
                while left > 0 and (count := self._read(key.data, min(left, self._most))):
                    left, came = left - count, came + count
        return came > 0

    def finish(self) -> None:
        """Read the rest, pass on the last lines without an end and close the selector."""
        until = time.monotonic() + _LAST
        while self.drain() and time.monotonic() < until:
            pass
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(key.data)
        self._selector.close()
        self._wakes.close()

    def _read(self, stream: Stream, most: int) -> int:
        try:
            data = os.read(stream.fd, most)
        except BlockingIOError:
            return 0
        if not data:
            self._end(stream)
            return 0
        self._give(stream, self._splitters[stream.fd].feed(data))
        return len(data)

    def _end(self, stream: Stream) -> None:
        self._give(stream, self._splitters[stream.fd].finish())
        self._selector.unregister(stream.fd)

    def _show_pending(self) -> None:
        self._looked = time.monotonic()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._give(key.data, self._splitters[key.fd].pending())

    def _give(self, stream: Stream, items: list[Item]) -> None:
        if items:
            self._sink.take(stream, items)


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return

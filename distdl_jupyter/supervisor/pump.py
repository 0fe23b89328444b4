"""Reads every stream of a run and hands over log texts and reports, in the order in which they were written.

It keeps no state of the job; what a report means is decided by its ``sink``.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING, Protocol

from distdl_jupyter.supervisor.lines import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.clusters.base import Stream
    from distdl_jupyter.supervisor.lines import Item

_READ = 1024 * 1024
#: Seconds after which a line without an end is shown as it stands.
_PENDING_AFTER = 0.3


class Sink(Protocol):
    """Takes what a stream said."""

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Take items of one stream, in order."""


class Pump:
    """Reads the streams of one run without ever blocking on a single one."""

    def __init__(self, streams: Iterable[Stream], nonce: str, sink: Sink) -> None:
        self._selector = selectors.DefaultSelector()
        self._sink = sink
        self._splitters: dict[int, LineSplitter] = {}
        self._looked = time.monotonic()
        for stream in streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
            self._splitters[stream.fd] = LineSplitter(nonce if stream.rank is not None else "")

    def watch(self, fd: int) -> None:
        """Let ``run`` return early when ``fd`` becomes readable (a wake-up pipe)."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def run(self, seconds: float) -> bool:
        """Read what comes within ``seconds``, returning after the first readable round. True when something came."""
        came = False
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                _empty(key.fd)
            else:
                came = self._read(key.data) or came
        if time.monotonic() - self._looked > _PENDING_AFTER:
            self._show_pending()
        return came

    def drain(self) -> None:
        """Read until every stream is empty for now."""
        while self.run(0):
            pass

    def finish(self) -> None:
        """Read the rest, pass on the last lines without an end and close the selector."""
        self.drain()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(key.data)
        self._selector.close()

    def _read(self, stream: Stream) -> bool:
        try:
            data = os.read(stream.fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._end(stream)
            return False
        self._give(stream, self._splitters[stream.fd].feed(data))
        return True

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

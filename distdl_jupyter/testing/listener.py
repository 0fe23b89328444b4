"""Listens to a run as a supervisor does: reads its streams, hears of its exits, keeps what was said by then."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from distdl_jupyter.supervisor.log_reader import LogReader, LogText

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.clusters.base import Exit, Notice, Run, Stream
    from distdl_jupyter.supervisor.log_reader import Item

_TICK = 0.05
#: One stream of one rank, as in ``Cluster.attach``; rank None is the launcher's own.
Which = tuple[int | None, str]


class Listener:
    """``lines`` and ``reports`` grow while it listens; ``exits`` holds each rank's end."""

    def __init__(self, run: Run, nonce: str) -> None:
        self.run = run
        self.exits: dict[int, Exit] = {}
        self.lines: dict[Which, list[str]] = {}
        #: What each rank had said when its end was told.
        self.lines_at_end: dict[Which, list[str]] = {}
        self.reports: dict[int, list[dict[str, Any]]] = {}
        self.notices: list[Notice] = []
        #: How far each kept stream was written down, for ``attach``.
        self.positions: dict[tuple[int, str], int] = {}
        self._reader = LogReader(run.streams, nonce, self)

    def together(self) -> AbstractContextManager[None]:
        """Hold nothing back (of the sink of a ``LogReader``)."""
        return nullcontext()

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Write down what a stream said (the sink of a ``LogReader``)."""
        for item in items:
            if stream.start is not None and stream.rank is not None:
                self.positions[stream.rank, stream.name] = stream.start + item.end
            if isinstance(item, LogText):
                self._text(stream, item)
            elif stream.rank is not None:
                self.reports.setdefault(stream.rank, []).append(item.data)

    def _text(self, stream: Stream, item: LogText) -> None:
        if stream.rank is None:
            self.run.on_launcher_output(item.text + "\n")
        if not item.redraws or item.closed:
            self.lines.setdefault((stream.rank, stream.name), []).extend(item.text.split("\n"))

    def said(self, rank: int, name: str = "out") -> list[str]:
        """Return the lines that a rank has said so far."""
        return self.lines.get((rank, name), [])

    def listen(self) -> None:
        """Listen for a moment. An end that is told twice, or of a rank that is none, is an error."""
        self._reader.run(_TICK)
        exits = self.run.poll()
        if exits:
            self._reader.drain()
        for exit_ in exits:
            assert exit_.rank not in self.exits, f"the end of rank {exit_.rank} was reported twice"
            self.exits[exit_.rank] = exit_
            for which in ((exit_.rank, "out"), (exit_.rank, "err")):
                self.lines_at_end[which] = list(self.lines.get(which, []))
        self.notices += self.run.notices()

    def until(self, condition: Callable[[], object], timeout: float, what: str) -> None:
        """Listen until ``condition()`` is true. Raises AssertionError after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < until, f"this did not happen within {timeout:g} s: {what}. {self._seen()}"
            self.listen()

    def until_ended(self, ranks: int, timeout: float) -> None:
        """Listen until every rank has ended."""
        self.until(lambda: len(self.exits) == ranks, timeout, f"the end of {ranks} ranks")

    def until_gone(self, timeout: float) -> None:
        """Listen until no process of the job lives."""
        self.until(lambda: not self.run.alive(), timeout, "the end of every process")

    def _seen(self) -> str:
        tail = {which: lines[-5:] for which, lines in self.lines.items()}
        return f"Ended: {list(self.exits.values())}. Output: {tail}. Notices: {[one.text for one in self.notices]}."

    def drain(self) -> None:
        """Read what is left."""
        self._reader.drain()

    def close(self, timeout: float = 20.0) -> None:
        """End what still lives, hear of it, and free what the run holds, whatever a test has done."""
        until = time.monotonic() + timeout
        while time.monotonic() < until and self._lives():
            self.run.signal("KILL")
            self.run.poll()
            time.sleep(_TICK)
        self._reader.finish()
        self.run.poll()
        self.run.close()

    def _lives(self) -> bool:
        try:
            return bool(self.run.alive())
        except Exception:  # noqa: BLE001 - a test has failed already, and its failure is to be seen
            return False

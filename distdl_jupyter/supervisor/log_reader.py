"""Reads the streams of a run and splits them into items: log texts and reports, in the order they were written.

* ``LogReader`` reads file descriptors, and bytes received by other threads. It keeps no state of the job; its ``sink``
  interprets the reports. Each round reads every readable stream once, so that a busy stream cannot starve the others.
  Unread output stays in the pipe, and a large pipe keeps the writer from blocking.
* ``LineSplitter`` does no I/O: it splits bytes into lines, redrawn lines and reports between them. Lines without a
  report or a carriage return are processed in bulk, with one search and one copy.
* ``ItemCollector`` merges many small texts into a few large ones.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.events import MAX_LOG_TEXT
from distdl_jupyter.node import channels
from distdl_jupyter.supervisor import reports
from distdl_jupyter.worker import channel

#: Maximum bytes read per round: from one stream, and from all streams together.
_READ, _ROUND = 1024 * 1024, 8 * 1024 * 1024
#: Seconds between two checks of unfinished lines: a line that is still unfinished at the second check is passed on.
_PENDING_AFTER = 0.2
#: Seconds to wait for the last output of streams that a process still holds open.
_LAST = 1.0
#: Maximum seconds of a round, whose output is written in one batch: thousands of streams may have little output each.
_TOGETHER = 0.1
#: Maximum bytes of an unfinished line before it is passed on in pieces, and of the text after a report's marker.
MAX_LINE, MAX_REPORT = 1024 * 1024, 16 * 1024 * 1024
#: How tqdm moves the cursor from the second bar back to the first one.
_UP = b"\x1b[A"
#: Maximum bytes shown of an unfinished line.
_SHOWN = 8 * 1024
#: Types of reports that may be emitted after the text around them.
_MOVABLE = ("metric", "progress")
#: Control sequences that move the cursor, erase, or set a mode (ECMA-48, DEC), as live displays use them. Colours and
#: fonts (SGR, ending in m) are not included.
_CURSOR = rb"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|[78DEM])"
_CURSOR_CODE, _CURSOR_LINES = re.compile(_CURSOR), re.compile(rb"^(?:%s)+\r?\n" % _CURSOR, re.MULTILINE)
_HALF_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*)?\Z")


@dataclass(frozen=True, slots=True)
class LogText:
    """Whole lines without the last newline; with ``redraws`` one line that was redrawn (see core.events).

    ``end`` is the position in the stream, in bytes, after the last whole line.
    """

    text: str
    redraws: int = 0
    closed: bool = False
    end: int = 0


@dataclass(frozen=True, slots=True)
class RankReport:
    """A report of a rank; ``end`` is the position in the stream, in bytes, after it.

    ``parsed`` is an instance of the report's class, None without a class or before the report is parsed.
    """

    data: dict[str, Any]
    end: int = 0
    parsed: reports.Report | None = None


Item = LogText | RankReport


class ItemSink(Protocol):
    """Receives the items of streams."""

    def together(self) -> AbstractContextManager[None]:
        """Return a context manager that batches the writes of all items taken inside it."""

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Process items of one stream, in order."""


class LogReader:
    """Reads the streams of one run without ever blocking on a single one. ``safe_end``: see ``LineSplitter``."""

    def __init__(
        self, streams: Iterable[Stream], nonce: str, sink: ItemSink, *, safe_end: Callable[[str], int] | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakes = selectors.DefaultSelector()
        self._sink = sink
        #: Open streams, streams with a fed inbox, and streams not yet read in this round.
        self._open: dict[_Source, None] = {}
        self._fed: deque[_Source] = deque()
        self._ready: deque[_Source] = deque()
        self._looked = time.monotonic()
        self._pace = channels.ReadPace()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        streams = tuple(streams)
        self._most = max(channels.LEAST, min(_READ, _ROUND // max(1, len(streams))))
        for stream in streams:
            splitter = LineSplitter(
                nonce if stream.rank is not None else "", in_order=stream.start is not None, safe_end=safe_end
            )
            if isinstance(stream.source, channels.Inbox):
                source = _Source(stream, splitter, self._most)
                stream.source.listen(functools.partial(self._on_fed, source))
            else:
                source = _Source(stream, splitter, channels.widen(stream.source, len(streams)) // 2)
                self._selector.register(stream.source, selectors.EVENT_READ, source)
            self._open[source] = None

    def _on_fed(self, source: _Source) -> None:
        """Note that an inbox was fed; thread-safe."""
        self._fed.append(source)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def watch(self, fd: int) -> None:
        """Let ``run`` return early when ``fd`` becomes readable (a wake-up pipe)."""
        self._selector.register(fd, selectors.EVENT_READ, None)
        self._wakes.register(fd, selectors.EVENT_READ, None)

    def run(self, seconds: float) -> bool:
        """Read for at most ``seconds``, returning after the first round with data. Return True if there was any.

        The next call reads the rest of a long round, so that the caller can do other work in between. Busy streams are
        read in rounds with pauses between them, because many small reads would take CPU time from the ranks. Only a
        wake-up ends a pause.
        """
        pause = 0.0 if self._ready else self._pace.pause()
        if pause:
            self._wakes.select(pause)
        total, is_busy = 0, False
        if not self._ready:
            self._find_ready(0.0 if self._fed else seconds)
        if self._ready:
            until = time.monotonic() + _TOGETHER
            with self._sink.together():
                while self._ready and time.monotonic() < until:
                    source = self._ready.popleft()
                    count = self._read(source, self._most)
                    total, is_busy = total + count, is_busy or count >= source.half
                    if source.waits and source in self._open:
                        self._fed.append(source)
        if total:
            self._pace.round(hurried=is_busy)
        if time.monotonic() - self._looked > _PENDING_AFTER:
            self._show_pending()
        return total > 0

    def _find_ready(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                _empty(key.fd)
            else:
                self._ready.append(key.data)
        fed = {self._fed.popleft(): None for _ in range(len(self._fed))}
        self._ready.extend(fed)

    def drain(self, ranks: Container[int] | None = None) -> bool:
        """Read all output written so far, without waiting for more. Return True if there was any.

        ``ranks`` limits this to the streams of these ranks and those that belong to no rank (None: all streams).
        """
        total = 0
        with self._sink.together():
            for source in list(self._open):
                rank = source.stream.rank
                if ranks is None or rank is None or rank in ranks:
                    left = source.waiting()
                    while left > 0 and (count := self._read(source, min(left, self._most))):
                        left, total = left - count, total + count
        return total > 0

    def finish(self) -> None:
        """Read the rest, pass on unfinished last lines and close the selector."""
        until = time.monotonic() + _LAST
        while self.drain() and time.monotonic() < until:
            pass
        with self._sink.together():
            for source in list(self._open):
                self._end(source)
        self._selector.close()
        self._wakes.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _read(self, source: _Source, most: int) -> int:
        data = source.read(most) if source in self._open else None
        if data:
            self._give(source, source.splitter.feed(data))
        elif data is not None:
            self._end(source)
        return len(data or b"")

    def _end(self, source: _Source) -> None:
        self._give(source, source.splitter.finish())
        del self._open[source]
        if isinstance(source.stream.source, channels.Inbox):
            source.stream.source.listen(bool)
        else:
            self._selector.unregister(source.stream.source)

    def _show_pending(self) -> None:
        self._looked = time.monotonic()
        with self._sink.together():
            for source in self._open:
                self._give(source, source.splitter.pending())

    def _give(self, source: _Source, items: list[Item]) -> None:
        if items:
            self._sink.take(source.stream, items)


class _Source:
    """A stream to read; ``half`` is half of its capacity in bytes, beyond which its writer blocks."""

    def __init__(self, stream: Stream, splitter: LineSplitter, half: int) -> None:
        self.stream = stream
        self.splitter = splitter
        self.half = half

    @property
    def waits(self) -> bool:
        """Whether an inbox has unread bytes or has ended; it does not notify of these again."""
        source = self.stream.source
        return isinstance(source, channels.Inbox) and (source.pending > 0 or source.ended)

    def waiting(self) -> int:
        """Return how many bytes can be read without blocking."""
        source = self.stream.source
        return source.pending if isinstance(source, channels.Inbox) else channels.waiting(source)

    def read(self, most: int) -> bytes | None:
        """Return at most this many bytes, b"" at the end of the stream, None if there is no data."""
        if isinstance(self.stream.source, channels.Inbox):
            return self.stream.source.take(most)
        try:
            return os.read(self.stream.source, most)
        except BlockingIOError:
            return None


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


class LineSplitter:
    """Splits one stream of a rank into items. ``nonce`` marks the reports ("" disables the search).

    With ``in_order``, a reader can resume after any item; otherwise text around metrics is not split.
    ``safe_end`` returns the position at which a long line can be cut without splitting a secret.
    """

    def __init__(self, nonce: str, *, in_order: bool = True, safe_end: Callable[[str], int] | None = None) -> None:
        self._safe_end = safe_end
        self._in_order = in_order
        self._nonce = nonce
        self._marker = channel.marker(nonce) if nonce else b""
        self._end = 0  # position after the last whole line, in bytes
        self._tail: list[bytes] = []  # bytes of the unfinished line
        self._size = 0  # bytes of the tail
        self._limit = MAX_LINE  # size at which the tail is checked
        self._before = 0  # bytes of the unfinished line that were redrawn and discarded
        self._before_redraws = 0
        self._open = 0  # redraws already passed on for that line
        self._shown = b""
        self._new = False  # whether the unfinished line grew since it was last shown
        self._just_begun = False  # whether the previous line ended since the last check

    def feed(self, data: bytes) -> list[Item]:
        """Add the next bytes and return the complete items."""
        self._new = True
        if b"\n" in data:
            data = self._joined_where_drawn_below(data)
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._keep(data)
            return self._relieve() if self._size > self._limit else []
        self._just_begun = True
        block = b"".join((*self._tail, data[:cut]))
        self._forget_tail()
        self._keep(data[cut:])
        return self._lines(block)

    def _joined_where_drawn_below(self, data: bytes) -> bytes:
        """Return the bytes with a carriage return in place of each newline that only moves back to a lower bar."""
        before = self._whole_tail()[-len(_UP) :]
        if b"\x1b" not in data and b"\x1b" not in before:
            return data
        return (before + data).replace(_UP + b"\n", _UP + b"\r")[len(before) :]

    def pending(self) -> list[Item]:
        """Return the unfinished line as a redrawn one if it changed since the last call.

        A line that began since then is skipped unless it was redrawn: in busy output the next bytes finish it.
        """
        tail = self._whole_tail()
        begun, self._just_begun = self._just_begun, False
        if not self._new or not tail or (begun and b"\r" not in tail):
            return []
        self._new = False
        drawn = _cut(_last_drawn(_without_cursor_codes(_without_half_code(tail)))[:_SHOWN])
        if not drawn or drawn == self._shown or (self._marker and self._marker[:1] in tail):
            return []
        self._shown = drawn
        self._open = max(1, self._before_redraws + tail.count(b"\r"))
        return [LogText(_decoded(drawn), redraws=self._open, end=self._end)]

    def finish(self) -> list[Item]:
        """Return the remaining items at the end of the stream."""
        if not self._size:
            return []
        left = self._whole_tail()
        self._forget_tail()
        return self._lines(left + b"\n")

    # the unfinished line --------------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        if data:
            self._tail.append(data)
            self._size += len(data)

    def _forget_tail(self) -> None:
        self._tail, self._size, self._limit = [], 0, MAX_LINE

    def _whole_tail(self) -> bytes:
        if len(self._tail) > 1:
            self._tail = [b"".join(self._tail)]
        return self._tail[0] if self._tail else b""

    def _relieve(self) -> list[Item]:
        """Pass on the beginning of an overlong unfinished line, or discard it if it was redrawn."""
        tail = self._whole_tail()
        stop = self._text_before_report(tail)
        drawn = _last_drawn_at(tail[:stop])[0]
        items: list[Item] = []
        if drawn:
            self._before += drawn
            self._before_redraws += tail.count(b"\r", 0, drawn)
            tail = tail[drawn:]
        elif stop > MAX_LINE // 2:
            out = ItemCollector(in_order=self._in_order)
            self._line(tail[:stop], stop, out)
            items, tail = out.items(), tail[stop:]
        self._forget_tail()
        self._keep(tail)
        self._limit = self._size + MAX_LINE
        return items

    def _text_before_report(self, tail: bytes) -> int:
        """Return how many bytes of the tail are certainly text, without a partial character at the end."""
        mark = tail.find(self._marker) if self._marker else -1
        if mark >= 0 and len(tail) - mark <= MAX_REPORT:
            return mark
        half = tail.rfind(b"\x1e", len(tail) - len(self._marker)) if self._marker else -1
        stop = half if half >= 0 else len(_cut(tail))
        if self._safe_end is None or not MAX_LINE // 2 < stop < MAX_REPORT:
            return stop
        # One character per byte, so that positions are byte positions.
        return len(_cut(tail[: self._safe_end(tail[:stop].decode("latin-1"))]))

    # whole lines ----------------------------------------------------------------------------------

    def _lines(self, block: bytes) -> list[Item]:
        out = ItemCollector(in_order=self._in_order)
        begin = 0
        for start, stop in self._special(block):
            self._plain(block, begin, start, out)
            self._line(block[start : stop - 1], stop - start, out)
            begin = stop
        self._plain(block, begin, len(block), out)
        return out.items()

    def _special(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each line that has a report or a carriage return, or whose beginning was shown."""
        if self._open or self._before:
            yield 0, (behind := block.index(b"\n") + 1)
        else:
            behind = 0
        mark, drawn = self._find_mark(block, behind), self._find_drawn(block, behind)
        while (at := min(mark, drawn)) < len(block):
            stop = block.index(b"\n", at) + 1
            yield block.rfind(b"\n", behind, at) + 1 or behind, stop
            behind = stop
            mark = self._find_mark(block, stop) if mark < stop else mark
            drawn = self._find_drawn(block, stop) if drawn < stop else drawn

    def _find_mark(self, block: bytes, begin: int) -> int:
        at = block.find(self._marker, begin) if self._marker else -1
        return at if at >= 0 else len(block)

    def _find_drawn(self, block: bytes, begin: int) -> int:
        at = block.find(b"\r", begin)
        return at if at >= 0 else len(block)

    def _plain(self, block: bytes, begin: int, stop: int, out: ItemCollector) -> None:
        if begin < stop:
            self._end += stop - begin
            out.plain(block[begin:stop], self._end)

    def _line(self, raw: bytes, length: int, out: ItemCollector) -> None:
        """Process one line without its newline; ``length`` is its size in the stream, in bytes."""
        length += self._before
        report, line = self._take_report(raw, self._end + length)
        if line is not None and (self._open or self._before or b"\r" in line.rstrip(b"\r")):
            visible = _without_cursor_codes(line)
            if self._open or visible is line or _last_drawn(visible):
                out.text(self._redrawn(visible, self._end + length))
        elif line is not None:
            # Text before a report gets the position before its line, so that a resumed reader reads both again.
            out.plain(line.rstrip(b"\r") + b"\n", self._end + (0 if report else length))
        self._end += length
        self._before = self._before_redraws = 0
        if report is not None:
            out.report(report)

    def _take_report(self, raw: bytes, end: int) -> tuple[RankReport | None, bytes | None]:
        if self._marker and self._marker in raw:
            text, report = channel.split(raw, self._nonce)
            with contextlib.suppress(reports.InvalidReport):
                if report is not None:
                    return RankReport(report, end, reports.parse(report)), text or None
        return None, raw

    def _redrawn(self, line: bytes, end: int) -> LogText:
        redraws = max(1, self._before_redraws + line.count(b"\r"), self._open)
        self._open, self._shown = 0, b""
        return LogText(_decoded(_last_drawn(line)), redraws=redraws, closed=True, end=end)


def _last_drawn(line: bytes) -> bytes:
    begin, stop = _last_drawn_at(line)
    return line[begin:stop]


def _last_drawn_at(line: bytes) -> tuple[int, int]:
    """Return start and end of the last non-blank text between carriage returns."""
    inked = len(line.rstrip(b"\r \t\v\f"))
    stop = line.find(b"\r", inked)
    return line.rfind(b"\r", 0, inked) + 1, (len(line) if stop < 0 else stop) if inked else 0


def _cut(text: bytes) -> bytes:
    """Return the bytes without an incomplete last character (UTF-8 has up to four bytes per character)."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if length > back else text
        if byte < 0x80:
            break
    return text


class ItemCollector:
    """Collects items: plain lines become texts of up to ``MAX_LOG_TEXT`` bytes.

    Metrics and progress follow the text that they arrived with, unless everything must be ``in_order``.
    """

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._items: list[Item] = []
        self._later: list[Item] = []
        self._lines: list[bytes] = []
        self._size = self._end = 0

    def plain(self, lines: bytes, end: int) -> None:
        """Add whole lines with their newlines; ``end`` is the position after them in the stream."""
        begin = end - len(lines)
        for start, stop in _parts(lines):
            if self._size + stop - start > MAX_LOG_TEXT:
                self._flush_lines()
            self._lines.append(lines[start:stop])
            self._size, self._end = self._size + stop - start, begin + stop

    def text(self, text: LogText) -> None:
        """Add a line that was redrawn."""
        self._flush()
        self._items.append(text)

    def report(self, report: RankReport) -> None:
        """Add a report."""
        self._later.append(report)
        if self._in_order or report.data["type"] not in _MOVABLE:
            self._flush()

    def items(self) -> list[Item]:
        """Return all items in order."""
        self._flush()
        return self._items

    def _flush(self) -> None:
        self._flush_lines()
        self._items += self._later
        self._later = []

    def _flush_lines(self) -> None:
        if self._lines:
            lines = self._lines[0] if len(self._lines) == 1 else b"".join(self._lines)
            if lines := _without_cursor_codes(lines):
                self._items.append(LogText(_decoded(lines[:-1]), end=self._end))
            self._lines, self._size = [], 0


def _parts(lines: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of runs of whole lines up to ``MAX_LOG_TEXT`` bytes; a longer line is a separate run."""
    begin = 0
    while begin < len(lines):
        most = begin + MAX_LOG_TEXT
        stop = len(lines) if most >= len(lines) else lines.rfind(b"\n", begin, most) + 1
        stop = stop if stop > begin else lines.index(b"\n", most) + 1
        yield begin, stop
        begin = stop


def _without_cursor_codes(text: bytes) -> bytes:
    """Return the text without cursor control sequences, and without lines that contain nothing else."""
    return _CURSOR_CODE.sub(b"", _CURSOR_LINES.sub(b"", text)) if b"\x1b" in text else text


def _without_half_code(text: bytes) -> bytes:
    """Return an unfinished line without an incomplete control sequence at its end."""
    return _HALF_CODE.sub(b"", text)


def _decoded(text: bytes) -> str:
    """Return the decoded text; bytes that are not valid UTF-8 are escaped."""
    return text.decode("utf-8", errors="replace")

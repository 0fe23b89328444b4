"""Reads the streams of a run and splits them into items: log texts and reports, in the order they were written.

* ``LogReader`` reads file descriptors, and bytes received by other threads. It keeps no job state; its ``sink``
  interprets the reports. Each round reads every readable stream once, so that a busy stream cannot starve the others.
  Unread output stays in the pipe, and a large pipe keeps the writer from blocking.
* ``LineSplitter`` does no I/O: it splits bytes into lines, redrawn lines and reports between them. Lines without a
  report or a carriage return are processed in bulk, with one search and one copy, and become a few large texts.
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
from typing import Any, NamedTuple, Protocol

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.events import MAX_LOG_TEXT
from distdl_jupyter.node import channels
from distdl_jupyter.supervisor import reports
from distdl_jupyter.worker import channel

#: Maximum bytes read per round: from one stream, and from all streams together.
_READ_BYTES, _ROUND_BYTES = 1024 * 1024, 8 * 1024 * 1024
#: Seconds between two checks of unfinished lines: a line that is still unfinished at the second check is passed on.
_PENDING_SECONDS = 0.2
#: Seconds to wait for the last output of streams that a process still holds open.
_DRAIN_SECONDS = 1.0
#: Maximum seconds of a round, whose output is written in one batch: thousands of streams may have little output each.
_ROUND_SECONDS = 0.1
#: Maximum bytes of an unfinished line before it is passed on in chunks, and of the text after a report's marker.
MAX_LINE_BYTES, MAX_REPORT_BYTES = 1024 * 1024, 16 * 1024 * 1024
#: How tqdm moves the cursor from the second bar back to the first one.
_CURSOR_UP = b"\x1b[A"
#: Maximum bytes shown of an unfinished line.
_MAX_PENDING_BYTES = 8 * 1024
#: Types of reports that may be emitted after the text around them.
_MOVABLE_TYPES = ("metric", "progress")
#: Control sequences that move the cursor, erase, or set a mode (ECMA-48, DEC), as live displays use them. Colours and
#: fonts (SGR, ending in m) are not included.
_CURSOR_REGEX = rb"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|[78DEM])"
_CURSOR_PATTERN, _CURSOR_LINES = re.compile(_CURSOR_REGEX), re.compile(rb"^(?:%s)+\r?\n" % _CURSOR_REGEX, re.MULTILINE)
_PARTIAL_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*)?\Z")


class LogText(NamedTuple):
    """Whole lines without the last newline; with ``redraws`` one line that was redrawn (see core.events).

    ``end`` is the position in the stream, in bytes, after the last whole line.
    """

    text: str
    redraws: int = 0
    closed: bool = False
    end: int = 0


class RankReport(NamedTuple):
    """A report of a rank; ``end`` is the position in the stream, in bytes, after it.

    ``parsed`` is an instance of the report's class, or None if it has no class or was not parsed yet.
    """

    data: dict[str, Any]
    end: int = 0
    parsed: reports.Report | None = None


Item = LogText | RankReport


class ItemSink(Protocol):
    """Receives the items of streams."""

    def batch_events(self) -> AbstractContextManager[None]:
        """Return a context manager that batches the writes of all items taken inside it."""

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Process items of one stream, in order."""


class LogReader:
    """Reads the streams of one run without ever blocking on a single one. ``safe_end``: see ``LineSplitter``."""

    def __init__(
        self, streams: Iterable[Stream], nonce: str, sink: ItemSink, *, safe_end: Callable[[str], int] | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._sink = sink
        #: Open streams, streams with a fed inbox, and streams not yet read in this round.
        self._sources: dict[_Source, None] = {}
        self._fed: deque[_Source] = deque()
        self._ready: deque[_Source] = deque()
        self._pending_at = time.monotonic() + _PENDING_SECONDS
        self._pace = channels.ReadPace()
        #: Watches only the pipes that end a pause. Unlike ``time.sleep``, waiting for it works with a faked clock
        #: (libfaketime).
        self._urgent_selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        streams = tuple(streams)
        self._max_read = max(channels.MIN_PIPE_BYTES, min(_READ_BYTES, _ROUND_BYTES // max(1, len(streams))))
        for stream in streams:
            splitter = LineSplitter(
                nonce if stream.rank is not None else "", in_order=stream.start is not None, safe_end=safe_end
            )
            if isinstance(stream.source, channels.Inbox):
                source = _Source(stream, splitter, self._max_read)
                stream.source.listen(functools.partial(self._on_fed, source))
            else:
                source = _Source(stream, splitter, channels.widen_pipe(stream.source, len(streams)) // 2)
                self._selector.register(stream.source, selectors.EVENT_READ, source)
            self._sources[source] = None

    def _on_fed(self, source: _Source) -> None:
        """Record that an inbox received data. Thread-safe."""
        self._fed.append(source)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def watch(self, fd: int) -> None:
        """Let ``run`` return early when ``fd`` becomes readable (a wake-up pipe)."""
        for selector in (self._selector, self._urgent_selector):
            selector.register(fd, selectors.EVENT_READ, None)

    def run(self, seconds: float) -> bool:
        """Read for at most ``seconds``, returning after the first round with data. Return True if there was any.

        The next call reads the rest of a long round, so that the caller can do other work in between. Busy streams are
        read in rounds with pauses between them, because many small reads would take CPU time from the ranks.
        """
        if not self._ready:
            self._wait(seconds)
        total, is_busy, deadline = 0, False, time.monotonic() + _ROUND_SECONDS
        with self._sink.batch_events():
            while self._ready and time.monotonic() < deadline:
                source = self._ready.popleft()
                count = self._read(source, self._max_read)
                total, is_busy = total + count, is_busy or count >= source.half_size
                if source.has_pending and source in self._sources:
                    self._fed.append(source)
            if time.monotonic() > self._pending_at:
                self._pending_at = time.monotonic() + _PENDING_SECONDS
                for source in self._sources:
                    self._emit(source, source.splitter.take_pending())
        if total:
            self._pace.record_round(is_busy=is_busy)
        return total > 0

    def _wait(self, seconds: float) -> None:
        """Wait for readable streams, after the pause that is due."""
        if pause := self._pace.compute_pause():
            self._urgent_selector.select(pause)
        for key, _ in self._selector.select(0.0 if self._fed else seconds):
            if key.data is not None:
                self._ready.append(key.data)
                continue
            with contextlib.suppress(BlockingIOError):
                while os.read(key.fd, 4096):
                    pass
        self._ready.extend({self._fed.popleft(): None for _ in range(len(self._fed))})

    def drain(self, ranks: Container[int] | None = None) -> bool:
        """Read all output written so far, without waiting for more. Return True if there was any.

        ``ranks`` limits this to the streams of these ranks and those that belong to no rank (default: all streams).
        """
        total = 0
        with self._sink.batch_events():
            for source in list(self._sources):
                rank = source.stream.rank
                if ranks is None or rank is None or rank in ranks:
                    remaining = source.count_available()
                    while remaining > 0 and (count := self._read(source, min(remaining, self._max_read))):
                        remaining, total = remaining - count, total + count
        return total > 0

    def finish(self) -> None:
        """Read the rest, pass on unfinished last lines and close the selector."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.drain() and time.monotonic() < deadline:
            pass
        with self._sink.batch_events():
            for source in list(self._sources):
                self._close_source(source)
        self._selector.close()
        self._urgent_selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _read(self, source: _Source, max_bytes: int) -> int:
        data = source.read(max_bytes) if source in self._sources else None
        if data:
            self._emit(source, source.splitter.feed(data))
        elif data is not None:
            self._close_source(source)
        return len(data or b"")

    def _close_source(self, source: _Source) -> None:
        self._emit(source, source.splitter.finish())
        del self._sources[source]
        if isinstance(source.stream.source, channels.Inbox):
            source.stream.source.listen(bool)
        else:
            self._selector.unregister(source.stream.source)

    def _emit(self, source: _Source, items: list[Item]) -> None:
        if items:
            self._sink.take(source.stream, items)


class _Source:
    """A stream to read; ``half_size`` is half of its capacity in bytes, beyond which its writer blocks."""

    def __init__(self, stream: Stream, splitter: LineSplitter, half_size: int) -> None:
        self.stream = stream
        self.splitter = splitter
        self.half_size = half_size

    @property
    def has_pending(self) -> bool:
        """Whether an inbox has unread bytes or has ended; it does not notify of these again."""
        source = self.stream.source
        return isinstance(source, channels.Inbox) and (source.unread > 0 or source.has_ended)

    def count_available(self) -> int:
        """Return how many bytes can be read without blocking."""
        source = self.stream.source
        return source.unread if isinstance(source, channels.Inbox) else channels.count_unread_bytes(source)

    def read(self, max_bytes: int) -> bytes | None:
        """Return at most this many bytes, b"" at the end of the stream, or None if there is no data yet."""
        if isinstance(self.stream.source, channels.Inbox):
            return self.stream.source.take(max_bytes)
        try:
            return os.read(self.stream.source, max_bytes)
        except BlockingIOError:
            return None


class LineSplitter:
    """Splits one stream of a rank into items. ``nonce`` marks the reports ("" disables the search).

    With ``in_order``, a reader can resume after any item; otherwise text around metrics is not split.
    ``safe_end`` returns the position at which a long line can be cut without splitting a secret.
    """

    def __init__(self, nonce: str, *, in_order: bool = True, safe_end: Callable[[str], int] | None = None) -> None:
        self._safe_end = safe_end
        self._in_order = in_order
        self._nonce = nonce
        self._marker = channel.make_marker(nonce) if nonce else b""
        self._position = 0  # position after the last whole line, in bytes
        self._tail: list[bytes] = []  # bytes of the unfinished line
        self._size = 0  # bytes of the tail
        self._limit = MAX_LINE_BYTES  # size at which the tail is checked
        self._discarded = 0  # bytes of the unfinished line that were redrawn and discarded
        self._discarded_redraws = 0
        self._open_redraws = 0  # redraws already passed on for that line
        self._pending_text = b""
        self._has_new_data = False  # whether the unfinished line grew since it was last shown
        self._has_new_line = False  # whether the previous line ended since the last check
        self._items: list[Item] = []  # complete items that are not returned yet
        self._deferred: list[Item] = []  # metrics and progress that may follow the text that they arrived with
        self._text: list[bytes] = []  # lines of the next text
        self._text_size = self._text_end = 0  # bytes of these lines, and the position after them

    def feed(self, data: bytes) -> list[Item]:
        """Add the next bytes and return the complete items."""
        self._has_new_data = True
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._tail.append(data)
            self._size += len(data)
            return self._shorten_tail() if self._size > self._limit else []
        previous = self._join_tail()[-len(_CURSOR_UP) :]
        if b"\x1b" in data or b"\x1b" in previous:  # a newline that only moves back to a lower bar redraws its line
            data = (previous + data).replace(_CURSOR_UP + b"\n", _CURSOR_UP + b"\r")[len(previous) :]
            cut = data.rfind(b"\n") + 1
            if not cut:
                return self.feed(data)
        self._has_new_line = True
        block = b"".join((*self._tail, data[:cut]))
        self._set_tail(data[cut:])
        return self._split(block)

    def take_pending(self) -> list[Item]:
        """Return the unfinished line as a redrawn one if it changed since the last call.

        A line that began since then is skipped unless it was redrawn: in busy output the next bytes finish it.
        """
        tail = self._join_tail()
        is_new_line, self._has_new_line = self._has_new_line, False
        if not self._has_new_data or not tail or (is_new_line and b"\r" not in tail):
            return []
        self._has_new_data = False
        begin, stop = _find_visible_span(text := _strip_cursor_codes(_PARTIAL_CODE.sub(b"", tail)))
        drawn = _trim_partial_character(text[begin:stop][:_MAX_PENDING_BYTES])
        if not drawn or drawn == self._pending_text or (self._marker and self._marker[:1] in tail):
            return []
        self._pending_text = drawn
        self._open_redraws = max(1, self._discarded_redraws + tail.count(b"\r"))
        return [LogText(drawn.decode(errors="replace"), redraws=self._open_redraws, end=self._position)]

    def finish(self) -> list[Item]:
        """Return the remaining items at the end of the stream."""
        if not self._size:
            return []
        rest = self._join_tail()
        self._set_tail(b"")
        return self._split(rest + b"\n")

    # the unfinished line --------------------------------------------------------------------------

    def _set_tail(self, data: bytes) -> None:
        self._tail, self._size, self._limit = [data] if data else [], len(data), MAX_LINE_BYTES

    def _join_tail(self) -> bytes:
        if len(self._tail) > 1:
            self._tail = [b"".join(self._tail)]
        return self._tail[0] if self._tail else b""

    def _shorten_tail(self) -> list[Item]:
        """Pass on the beginning of an overlong unfinished line, or discard it if it was redrawn."""
        tail = self._join_tail()
        stop = self._measure_text(tail)
        begin = _find_visible_span(tail[:stop])[0]
        if begin:
            self._discarded += begin
            self._discarded_redraws += tail.count(b"\r", 0, begin)
            tail = tail[begin:]
        elif stop > MAX_LINE_BYTES // 2:
            self._add_line(tail[:stop], stop)
            tail = tail[stop:]
        self._set_tail(tail)
        self._limit = self._size + MAX_LINE_BYTES
        return self._take_items()

    def _measure_text(self, tail: bytes) -> int:
        """Return how many bytes of the tail are certainly text, without a partial character at the end."""
        mark = tail.find(self._marker) if self._marker else -1
        if mark >= 0 and len(tail) - mark <= MAX_REPORT_BYTES:
            return mark
        partial = tail.rfind(b"\x1e", len(tail) - len(self._marker)) if self._marker else -1
        stop = partial if partial >= 0 else len(_trim_partial_character(tail))
        if self._safe_end is None or not MAX_LINE_BYTES // 2 < stop < MAX_REPORT_BYTES:
            return stop
        # One character per byte, so that positions are byte positions.
        return len(_trim_partial_character(tail[: self._safe_end(tail[:stop].decode("latin-1"))]))

    # whole lines ----------------------------------------------------------------------------------

    def _split(self, block: bytes) -> list[Item]:
        begin = 0
        for start, stop in self._find_special_lines(block):
            self._position += start - begin
            self._add_lines(block[begin:start], self._position)
            self._add_line(block[start : stop - 1], stop - start)
            begin = stop
        self._position += len(block) - begin
        self._add_lines(block[begin:], self._position)
        return self._take_items()

    def _find_special_lines(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each line that has a report or a carriage return, or whose beginning was shown."""
        position = 0
        if self._open_redraws or self._discarded:
            yield 0, (position := block.index(b"\n") + 1)
        mark, redraw = _find(block, self._marker, position), _find(block, b"\r", position)
        while (index := min(mark, redraw)) < len(block):
            stop = block.index(b"\n", index) + 1
            yield block.rfind(b"\n", position, index) + 1 or position, stop
            position = stop
            mark = _find(block, self._marker, stop) if mark < stop else mark
            redraw = _find(block, b"\r", stop) if redraw < stop else redraw

    def _add_lines(self, lines: bytes, end: int) -> None:
        """Add whole lines with their newlines to the next text; ``end`` is the position after them in the stream."""
        start, offset = 0, end - len(lines)
        while start < len(lines):
            limit = start + MAX_LOG_TEXT
            stop = len(lines) if limit >= len(lines) else lines.rfind(b"\n", start, limit) + 1
            stop = stop if stop > start else lines.index(b"\n", limit) + 1  # a longer line is a text of its own
            if self._text_size + stop - start > MAX_LOG_TEXT:
                self._flush_text()
            self._text.append(lines[start:stop])
            self._text_size, self._text_end = self._text_size + stop - start, offset + stop
            start = stop

    def _add_line(self, raw: bytes, length: int) -> None:
        """Process one line without its newline; ``length`` is its size in the stream, in bytes."""
        length += self._discarded
        report, line = self._take_report(raw, self._position + length)
        if line is not None and (self._open_redraws or self._discarded or b"\r" in line.rstrip(b"\r")):
            visible = _strip_cursor_codes(line)
            begin, stop = _find_visible_span(visible)
            if self._open_redraws or visible is line or begin < stop:
                redraws = max(1, self._discarded_redraws + visible.count(b"\r"), self._open_redraws)
                text = visible[begin:stop].decode(errors="replace")
                self._flush()
                self._items.append(LogText(text, redraws=redraws, closed=True, end=self._position + length))
                self._open_redraws, self._pending_text = 0, b""
        elif line is not None:
            # Text before a report gets the position before its line, so that a resumed reader reads both again.
            self._add_lines(line.rstrip(b"\r") + b"\n", self._position + (0 if report else length))
        self._position += length
        self._discarded = self._discarded_redraws = 0
        if report is not None:
            self._deferred.append(report)
            if self._in_order or report.data["type"] not in _MOVABLE_TYPES:
                self._flush()

    def _take_report(self, raw: bytes, end: int) -> tuple[RankReport | None, bytes | None]:
        if self._marker and self._marker in raw:
            text, report = channel.split_line(raw, self._nonce)
            with contextlib.suppress(reports.InvalidReport):
                if report is not None:
                    return RankReport(report, end, reports.parse(report)), text or None
        return None, raw

    def _take_items(self) -> list[Item]:
        self._flush()
        items, self._items = self._items, []
        return items

    def _flush(self) -> None:
        self._flush_text()
        self._items += self._deferred
        self._deferred = []

    def _flush_text(self) -> None:
        if self._text:
            lines = self._text[0] if len(self._text) == 1 else b"".join(self._text)
            if lines := _strip_cursor_codes(lines):
                self._items.append(LogText(lines[:-1].decode(errors="replace"), end=self._text_end))
            self._text, self._text_size = [], 0


def _find(block: bytes, pattern: bytes, begin: int) -> int:
    """Return where the pattern is in the block, at or after ``begin``; the block's length if it is missing."""
    index = block.find(pattern, begin) if pattern else -1
    return index if index >= 0 else len(block)


def _find_visible_span(line: bytes) -> tuple[int, int]:
    """Return start and end of the last non-blank text between carriage returns."""
    ink_end = len(line.rstrip(b"\r \t\v\f"))
    stop = line.find(b"\r", ink_end)
    return line.rfind(b"\r", 0, ink_end) + 1, (len(line) if stop < 0 else stop) if ink_end else 0


def _trim_partial_character(text: bytes) -> bytes:
    """Return the bytes without an incomplete last character (UTF-8 has up to four bytes per character)."""
    for count in range(1, min(4, len(text) + 1)):
        byte = text[-count]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-count] if length > count else text
        if byte < 0x80:
            break
    return text


def _strip_cursor_codes(text: bytes) -> bytes:
    """Return the text without cursor control sequences, and without lines that contain nothing else."""
    return _CURSOR_PATTERN.sub(b"", _CURSOR_LINES.sub(b"", text)) if b"\x1b" in text else text

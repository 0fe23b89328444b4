"""The log of a job, folded for reading.

Equal lines of several ranks within ``FOLD_SECONDS`` are folded into one row, which stores the position of each rank's
line, so that the view of one rank shows its exact output. A line that is redrawn (a progress bar) is in ``open_rows``
while it changes and becomes a row when it ends. Text is safe to display but not escaped for HTML.

``LogWindow`` reads a short log from its beginning and a long one from its end. A reader that falls far behind skips
ahead and starts a new ``log``, which numbers its rows from that byte offset. ``read_rows_before`` reads earlier rows
from the file in chunks; each line is in exactly one row.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from distdl_jupyter.core import logfile
from distdl_jupyter.core.events import Event
from distdl_jupyter.core.humanize import MAX_LINE_LENGTH, Styles, styled
from distdl_jupyter.core.view import JobView

#: Equal lines of ranks are folded if they arrive within this many seconds.
FOLD_SECONDS = 2.0
#: Maximum number of recent texts, and of recent rows with one text; above it, no later line is folded into them.
_MAX_RECENT_ROWS = 20_000
#: Default maximum number of rows in memory.
MAX_ROWS = 5000
#: Maximum bytes that a reader has not read yet, at its start or later, before it skips ahead.
MAX_BACKLOG_BYTES = 8 * 1024 * 1024
#: Size of a chunk in bytes. Lines are folded only within a chunk, so each chunk can be reread on its own.
CHUNK_BYTES = 512 * 1024


@dataclass(slots=True, eq=False)
class FoldedRow:
    """One row: ``n`` is its permanent number (-1 while it is redrawn), ``t`` its time, ``rank`` printed it first.

    ``rank`` is None for a line of the system. ``lines`` maps each rank that printed it to the position of its line,
    which is higher for later lines. ``redraws`` is how often it was redrawn.
    """

    t: float
    rank: int | None
    stream: str
    text: str
    redraws: int = 0
    styles: Styles = ()
    lines: dict[int, int] = field(default_factory=dict)
    n: int = -1
    revision: int = 0


class FoldedLog:
    """The log of one job of ``process_count`` ranks, of which the newest ``tail`` rows stay in memory.

    A log that starts at the byte ``begin`` of the file numbers its rows from there, so their numbers are higher than
    those of earlier rows. ``revision`` is then its first revision, so that revisions of different logs never coincide.
    """

    def __init__(self, process_count: int = 0, tail: int = MAX_ROWS, begin: int = 0, revision: int = 0) -> None:
        self.process_count = process_count
        self.rows: deque[FoldedRow] = deque(maxlen=tail)
        #: The rows by number, ordered by their last change, so that changes can be read from the end.
        self._by_change: dict[int, FoldedRow] = {}
        #: The lines that are being redrawn, by rank and stream, the most recently redrawn last.
        self.open_rows: dict[tuple[int | None, str], FoldedRow] = {}
        #: The rows of the last seconds by stream and text, to find the row for an equal line of another rank.
        self._recent_rows: dict[tuple[str, str], list[FoldedRow]] = {}
        #: Number of the next row, and position of the newest line.
        self.next_number = self._position = begin
        #: The current revision, to pass to ``get_changes``, and the revision before the first change.
        self.revision = self._first_revision = revision

    def apply(self, event: Event) -> None:
        """Add one log event; ignore events of other types."""
        if event.get("type") != "log":
            return
        t, rank, stream, text = event["t"], event.get("rank"), event.get("stream", "out"), event["text"]
        if redraws := int(event.get("redraws") or 0):
            display_text, styles = styled(text)
            self.open_rows.pop((rank, stream), None)
            if event.get("closed"):
                self._add(t, rank, stream, display_text, redraws, styles)
            else:
                row = self.open_rows[rank, stream] = FoldedRow(t, rank, stream, display_text, redraws, styles)
                self.revision = row.revision = self.revision + 1
            return
        if event.get("counts") is not None:  # lines before it were left out
            self._recent_rows.clear()
        for line in text.split("\n"):
            is_clean = len(line) <= MAX_LINE_LENGTH and line.isprintable()  # styled() would not change it
            display_text, styles = (line, ()) if is_clean else styled(line)
            self._add(t, rank, stream, display_text, styles=styles)

    def has_revision(self, revision: int) -> bool:
        """Return whether this log, or the same log in another process, issued the revision."""
        return self._first_revision < revision <= self.revision

    def seal(self, begin: int) -> None:
        """Continue at the byte ``begin`` as a log that starts there: do not fold later lines into earlier rows."""
        self._recent_rows.clear()
        self._position = begin

    def get_changes(self, since: int = 0, limit: int | None = None) -> tuple[list[FoldedRow], int, int]:
        """Return the rows changed after a revision, the revision for the next call, and the number of remaining rows.

        At most ``limit`` rows are returned, those that changed first; the next call returns the rest.
        """
        rows = list(takewhile(lambda row: row.revision > since, reversed(self._by_change.values())))
        rows.reverse()
        remaining = 0 if limit is None else max(0, len(rows) - limit)
        if remaining:
            del rows[limit:]
        revision = rows[-1].revision if remaining else self.revision
        return sorted(rows, key=lambda row: row.n), revision, remaining

    @property
    def first_number(self) -> int:
        """Number of the oldest row in memory."""
        return self.rows[0].n if self.rows else self.next_number

    def get_rows(self, first: int, before: int) -> list[FoldedRow]:
        """Return the rows in memory with ``first <= n < before``."""
        return [row for row in self.rows if first <= row.n < before]

    def get_rank_rows(self, rank: int) -> list[FoldedRow]:
        """Return the rows in memory of one rank in the order in which it printed them."""
        return sorted((row for row in self.rows if rank in row.lines), key=lambda row: row.lines[rank])

    def _add(self, t: float, rank: int | None, stream: str, text: str, redraws: int = 0, styles: Styles = ()) -> None:
        self.revision = revision = self.revision + 1
        is_foldable = isinstance(rank, int) and redraws <= 1
        self._position += rank is not None
        equal_rows = self._recent_rows.get((stream, text)) if is_foldable else None
        if equal_rows and t - equal_rows[0].t > FOLD_SECONDS:
            del equal_rows[: bisect_left(equal_rows, t - FOLD_SECONDS, key=lambda row: row.t)]
        if equal_rows and rank is not None and rank not in equal_rows[-1].lines:
            row = equal_rows[0]
            if rank in row.lines:  # each rank fills equal rows in order, so those that already have its line come first
                row = equal_rows[bisect_left(equal_rows, 1, key=lambda row: rank not in row.lines)]
            row.lines[rank] = self._position
            row.revision = revision
            if self._by_change.pop(row.n, None):
                self._by_change[row.n] = row
            return
        lines = {} if rank is None else {rank: self._position}
        row = FoldedRow(t, rank, stream, text, redraws, styles, lines, self.next_number, revision)
        self.next_number += 1
        if len(self.rows) == self.rows.maxlen:
            del self._by_change[self.rows[0].n]
        self.rows.append(row)
        self._by_change[row.n] = row
        if equal_rows is not None:
            equal_rows.append(row)
        elif is_foldable:
            self._recent_rows[stream, text] = equal_rows = [row]
        if equal_rows and max(len(equal_rows), len(self._recent_rows)) > _MAX_RECENT_ROWS:
            self._recent_rows.clear()


class LogWindow:
    """The log of one job of ``process_count`` ranks in the file ``path``; ``log`` stores the newest ``tail`` rows."""

    def __init__(self, path: Path, process_count: int = 0, tail: int = MAX_ROWS) -> None:
        self.log = FoldedLog(process_count, tail)
        self._path, self._tail = path, tail
        #: Byte offset up to which the log has been read or skipped.
        self.cursor = 0
        #: The first byte of each chunk, and the number of its first row; everything before the first one was skipped.
        self._chunks = [(0, 0)]

    def read_more(self, view: JobView) -> bool:
        """Read more of the log and count its lines in ``view``; return False at the end."""
        end = logfile.get_size(self._path)
        if end - self.cursor > MAX_BACKLOG_BYTES:
            begin = logfile.find_line(self._path, max(self.cursor, end - CHUNK_BYTES), end)
            logfile.count_lines(self._path, self.cursor, view, begin)
            revision = secrets.randbelow(2**52)  # so that all revisions are below 2**53, exact integers in JavaScript
            self.log = FoldedLog(self.log.process_count, self._tail, begin, revision)
            self.cursor, self._chunks = begin, [(begin, begin)]
        boundary = (self.cursor // CHUNK_BYTES + 1) * CHUNK_BYTES
        stop = logfile.find_line(self._path, boundary, end) if boundary < end else end
        events, cursor = logfile.read(self._path, self.cursor, stop - self.cursor) if stop > self.cursor else ([], 0)
        if cursor <= self.cursor:
            return False
        for event in events:
            view.apply(event)
            self.log.apply(event)
        self.cursor = cursor
        if cursor >= boundary:
            self.log.seal(cursor)
            self._chunks.append((cursor, self.log.next_number))
        return True

    def read_rows_before(self, n: int, limit: int) -> list[FoldedRow]:
        """Return the newest rows with numbers below ``n``, at most ``limit``; [] if there are none."""
        if n > self.log.first_number:
            return self.log.get_rows(max(self.log.first_number, n - limit), n)
        while (index := bisect_left(self._chunks, n, key=lambda chunk: chunk[1]) - 1) >= 0 or self._chunks[0][0] > 0:
            if rows := [row for row in self._read_chunk(index) if row.n < n]:
                return rows[-limit:]
            n = self._chunks[max(0, index)][1]
        return []

    def _read_chunk(self, index: int) -> list[FoldedRow]:
        """Return the rows of a chunk. The index -1 adds the skipped chunk before the first one."""
        end, next_row = [*self._chunks, (self.cursor, self.log.next_number)][index + 1]
        if index >= 0:
            begin = self._chunks[index][0]
        else:
            size = CHUNK_BYTES
            while (begin := logfile.find_line(self._path, end - size, end)) >= end:  # in a very long line
                size *= 2
            deleted = logfile.find_deleted_range(self._path)
            if deleted[0] <= begin < deleted[1]:
                begin = deleted[0]
        log = FoldedLog(self.log.process_count, 2**62, begin)
        for event in logfile.read_range(self._path, begin, end)[0]:
            log.apply(event)
        first_row = next_row - len(log.rows)  # counted from the end, because the first lines may have been deleted
        if index < 0:
            self._chunks.insert(0, (begin, first_row))
        for n, row in enumerate(log.rows, first_row):
            row.n = n
        return list(log.rows)

"""The log of a job, folded for reading.

* Equal lines of several ranks within ``FOLD_SECONDS`` are one row. For each of its ranks, a row has the position of the
  line; the view of one rank sorts its rows by position, so it shows the rank's exact output.
* A line that is redrawn (a progress bar) is in ``open`` while it changes and becomes a row when it ends.
* The newest ``tail`` rows stay in memory.

Call ``LogBook.apply(event)`` for each event in order; ``get_changes(mark)`` returns the rows that were added or
replaced. Text is safe to display (``core.humanize``) but not escaped for HTML; its styles are separate.

``LogWindow`` reads a short log from its beginning and a long one from its end. A reader that falls far behind skips
ahead, and a new ``book`` starts there, whose rows are numbered from the byte at which it starts. ``read_rows_before``
reads the rows before these again, piece by piece; each line is in exactly one row.
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
#: Number of rows searched for an equal line. It does not depend on ``tail``, so all books fold in the same way.
MAX_RECENT_ROWS = 20_000
#: Number of rows of a book by default.
MAX_ROWS = 5000
#: Maximum bytes of a log that is read from its beginning.
MAX_UNREAD_BYTES = 8 * 1024 * 1024
#: Maximum bytes of a reader's backlog before it skips ahead.
MAX_BACKLOG_BYTES = 4 * 1024 * 1024
#: Bytes that are folded at a time, and separately from others, so that they can be read again.
PIECE_BYTES = 512 * 1024
#: Number of marks of a book.
_MARKS_PER_BOOK = 2**32
#: Number of books with different marks; marks are below 2**53, as JavaScript requires.
_MAX_BOOKS = 2**20


@dataclass(slots=True, eq=False)
class FoldedRow:
    """One row: ``n`` is its permanent number, ``t`` is in epoch seconds, ``rank`` printed it first (None: the system).

    ``lines`` maps each rank that printed it to the position of its line (higher for later lines). ``redraws`` counts
    how often the line was redrawn, ``styles`` are the styles of its text. ``n`` is -1 while the line is redrawn.
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


class LogBook:
    """The log of one job of ``process_count`` ranks; ``core.view.JobView`` counts its lines.

    A book that starts at the byte ``begin`` of the log numbers its rows from there, so they have higher numbers than
    earlier rows. ``mark`` then distinguishes its marks from those of other books.
    """

    def __init__(self, process_count: int = 0, tail: int = MAX_ROWS, begin: int = 0, mark: int = 0) -> None:
        self.process_count = process_count
        self.rows: deque[FoldedRow] = deque(maxlen=tail)
        #: The rows by number, ordered by their last change, so that changes can be read from the end.
        self._by_change: dict[int, FoldedRow] = {}
        self._open_rows: dict[tuple[int | None, str], FoldedRow] = {}
        self._recent = _RecentRows()
        #: Number of the next row, and position of the newest line.
        self.next = self._position = begin
        #: The current mark, for ``changes``, and the one before the first change.
        self.mark = self._first_mark = mark

    def apply(self, event: Event) -> None:
        """Add one line of the log; other types are ignored."""
        if event.get("type") != "log":
            return
        t, rank, stream, text = event["t"], event.get("rank"), event.get("stream", "out"), event["text"]
        if redraws := int(event.get("redraws") or 0):
            display_text, styles = styled(text)
            if event.get("closed"):
                self._open_rows.pop((rank, stream), None)
                self._add(t, rank, stream, display_text, redraws, styles)
            else:
                row = self._open_rows[rank, stream] = FoldedRow(t, rank, stream, display_text, redraws, styles)
                self.mark = row.revision = self.mark + 1
            return
        if event.get("counts") is not None:  # lines before it were left out
            self._recent = _RecentRows()
        for line in text.split("\n"):
            is_clean = len(line) <= MAX_LINE_LENGTH and line.isprintable()  # styled() would not change it
            display_text, styles = (line, ()) if is_clean else styled(line)
            self._add(t, rank, stream, display_text, styles=styles)

    @property
    def open(self) -> list[FoldedRow]:
        """The lines that are being redrawn, the most recently redrawn last."""
        return sorted(self._open_rows.values(), key=lambda row: row.revision)

    def has_mark(self, mark: int) -> bool:
        """Return whether ``mark`` is from this book, or from an equal one in another process."""
        return self._first_mark < mark <= self.mark

    def seal(self, begin: int) -> None:
        """Continue at the byte ``begin`` as a book that starts there: fold no later line into an earlier row."""
        self._recent = _RecentRows()
        self._position = begin

    def is_from_all(self, row: FoldedRow) -> bool:
        """Return whether all ranks printed the row; False for a job with one rank."""
        return len(row.lines) == self.process_count > 1

    def get_changes(self, since: int = 0, limit: int | None = None) -> tuple[list[FoldedRow], int, int]:
        """Return the rows that changed since a mark, the mark for the next call, and the number of rows left for it.

        At most ``limit`` rows are returned, those that changed first; the next call returns the rest. A view also drops
        its rows below ``first`` and replaces its ``open`` lines.
        """
        rows = list(takewhile(lambda row: row.revision > since, reversed(self._by_change.values())))
        rows.reverse()
        remaining = 0 if limit is None else max(0, len(rows) - limit)
        if remaining:
            del rows[limit:]
        mark = rows[-1].revision if remaining else self.mark
        return sorted(rows, key=lambda row: row.n), mark, remaining

    @property
    def first(self) -> int:
        """Number of the oldest row in memory."""
        return self.rows[0].n if self.rows else self.next

    def get_rows(self, first: int, before: int) -> list[FoldedRow]:
        """Return the rows in memory with numbers from ``first`` on and below ``before``."""
        return [row for row in self.rows if first <= row.n < before]

    def get_rank_rows(self, rank: int) -> list[FoldedRow]:
        """Return the rows in memory of one rank in the order in which it printed them."""
        return sorted((row for row in self.rows if rank in row.lines), key=lambda row: row.lines[rank])

    def _add(self, t: float, rank: int | None, stream: str, text: str, redraws: int = 0, styles: Styles = ()) -> None:
        self.mark = revision = self.mark + 1
        is_foldable = isinstance(rank, int) and redraws <= 1
        self._position += rank is not None
        if is_foldable and rank is not None and (row := self._recent.find(t, rank, stream, text)) is not None:
            row.lines[rank] = self._position
            row.revision = revision
            if self._by_change.pop(row.n, None):
                self._by_change[row.n] = row
            return
        lines = {} if rank is None else {rank: self._position}
        row = FoldedRow(t, rank, stream, text, redraws, styles, lines, self.next, revision)
        self.next += 1
        if len(self.rows) == self.rows.maxlen:
            del self._by_change[self.rows[0].n]
        self.rows.append(row)
        self._by_change[row.n] = row
        if is_foldable:
            self._recent.add(row)


class _RecentRows:
    """The rows of the last seconds by text, to find the row for an equal line of another rank."""

    def __init__(self) -> None:
        self._rows: deque[FoldedRow] = deque()
        self._by_text: dict[tuple[str, str], list[FoldedRow]] = {}

    def add(self, row: FoldedRow) -> None:
        """Add a new row."""
        self._rows.append(row)
        self._by_text.setdefault((row.stream, row.text), []).append(row)

    def find(self, t: float, rank: int, stream: str, text: str) -> FoldedRow | None:
        """Return the oldest recent row with this text that does not have a line of the rank yet."""
        rows, by_text = self._rows, self._by_text
        while rows and (t - rows[0].t > FOLD_SECONDS or len(rows) >= MAX_RECENT_ROWS):
            row = rows.popleft()
            old_rows = by_text[row.stream, row.text]
            del old_rows[0]
            if not old_rows:
                del by_text[row.stream, row.text]
        equal_rows = by_text.get((stream, text))
        if equal_rows is None or rank in equal_rows[-1].lines:
            return None
        if len(equal_rows) == 1:
            return equal_rows[0]
        # A rank's lines are in the first of these rows, because each is added to the next one.
        return equal_rows[bisect_left(equal_rows, 1, key=lambda row: rank not in row.lines)]


class LogWindow:
    """The log of one job of ``process_count`` ranks in the file ``path``; ``book`` has the newest ``tail`` rows."""

    def __init__(self, path: Path, process_count: int = 0, tail: int = MAX_ROWS) -> None:
        self.book = LogBook(process_count, tail)
        #: Bytes of the file up to which the log was read or skipped.
        self.cursor = 0
        self._path, self._tail = path, tail
        #: The first byte of each piece, and the number of its first row; everything before the first one was skipped.
        self._pieces = [(0, 0)]

    def read_more(self, view: JobView) -> bool:
        """Read more of the log and count its lines in ``view``; return False at the end."""
        end = logfile.get_size(self._path)
        if end - self.cursor > (MAX_BACKLOG_BYTES if self.cursor else MAX_UNREAD_BYTES):
            begin = logfile.find_line(self._path, max(self.cursor, end - PIECE_BYTES), end)
            logfile.count_lines(self._path, self.cursor, view, begin)
            mark = (1 + secrets.randbelow(_MAX_BOOKS - 1)) * _MARKS_PER_BOOK
            self.book = LogBook(self.book.process_count, self._tail, begin, mark)
            self.cursor, self._pieces = begin, [(begin, begin)]
        boundary = (self.cursor // PIECE_BYTES + 1) * PIECE_BYTES
        stop = logfile.find_line(self._path, boundary, end) if boundary < end else end
        events, cursor = logfile.read(self._path, self.cursor, stop - self.cursor) if stop > self.cursor else ([], 0)
        if cursor <= self.cursor:
            return False
        for event in events:
            view.apply(event)
            self.book.apply(event)
        self.cursor = cursor
        if cursor >= boundary:
            self.book.seal(cursor)
            self._pieces.append((cursor, self.book.next))
        return True

    def read_rows_before(self, n: int, limit: int) -> list[FoldedRow]:
        """Return the newest rows with numbers below ``n``, at most ``limit``; [] if there are none."""
        if n > self.book.first:
            return self.book.get_rows(max(self.book.first, n - limit), n)
        while (index := bisect_left(self._pieces, n, key=lambda piece: piece[1]) - 1) >= 0 or self._pieces[0][0] > 0:
            if rows := [row for row in self._read_piece(index) if row.n < n]:
                return rows[-limit:]
            n = self._pieces[max(0, index)][1]
        return []

    def _read_piece(self, index: int) -> list[FoldedRow]:
        """Return the rows of a piece. The index -1 adds the piece before the first one, which was skipped."""
        end, next_row = [*self._pieces, (self.cursor, self.book.next)][index + 1]
        deleted = logfile.find_deleted_range(self._path) or (0, 0)
        if index >= 0:
            begin, first_row = self._pieces[index]
        else:
            size = PIECE_BYTES
            while (begin := logfile.find_line(self._path, end - size, end)) >= end:  # in a very long line
                size *= 2
        is_partial = deleted[0] <= begin < deleted[1]  # its first lines were deleted
        if index < 0 and is_partial:
            begin = deleted[0]
        book = LogBook(self.book.process_count, 2**62, begin)
        for event in logfile.read_range(self._path, begin, end)[0]:
            book.apply(event)
        rows = list(book.rows)
        if index < 0 or is_partial:
            first_row = next_row - len(rows)
        if index < 0:
            self._pieces.insert(0, (begin, first_row))
        for n, row in enumerate(rows, first_row):
            row.n = n
        return rows

"""The log of a job, folded for reading.

* Equal lines of several ranks within ``WINDOW`` seconds are one row. For each of its ranks, a row has the position of
  the line; the view of one rank sorts its rows by position, so it shows the rank's exact output.
* A line that is redrawn (a progress bar) is in ``open`` while it changes and becomes a row when it ends.
* The newest ``tail`` rows are kept.

Call ``LogBook.apply(event)`` for each event in order; ``changes(mark)`` returns the rows that were added or replaced.
Text is safe to display (``core.humanize``) but not escaped for HTML; its styles are separate.

``LogWindow`` reads the newest part of a log from its file, and any earlier part on request:

* A short log is read from its beginning, a long one from its end. A reader that falls far behind skips to the end,
  where a new ``book`` starts. ``before`` reads the skipped rows.
* The number of a row is the same for all readers: the first row of a book has the number of the byte at which the
  book starts, which is never lower than the number of rows before it. The range between two starting points is folded
  separately, so each line is in exactly one row.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from distdl_jupyter.core import logfile
from distdl_jupyter.core.events import Event
from distdl_jupyter.core.humanize import MAX_SHOWN, Styles, styled
from distdl_jupyter.core.view import JobView

#: Equal lines of ranks are folded if they arrive within this many seconds.
WINDOW = 2.0
#: Number of rows searched for an equal line. It does not depend on ``tail``, so all books fold in the same way.
RECENT = 20_000
TAIL = 5000
#: Maximum bytes of a log that is read from its beginning, and of a reader's backlog before it skips ahead.
LONG, BEHIND = 8 * 1024 * 1024, 4 * 1024 * 1024
#: Bytes that are folded at a time (more than the longest line), and size of a piece that is folded separately.
STEP, PIECE = 512 * 1024, 2 * 1024 * 1024
#: Number of lines to find before a position, with the initial and the maximum number of bytes to read.
_MIN_LINES, _CHUNK, _MAX_CHUNK = 400, 256 * 1024, 64 * 1024 * 1024
#: Number of marks of a book, and of books with different marks. Marks are below 2**53, as JavaScript requires.
_MARKS_PER_BOOK, _MAX_BOOKS = 2**32, 2**20


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
    _position: int = 0
    n: int = -1
    revision: int = 0
    #: To save memory, only rows of several ranks have a dict.
    _positions: dict[int, int] | None = None

    @property
    def lines(self) -> dict[int, int]:
        """Return the position of the line of each rank."""
        return self._positions or ({self.rank: self._position} if self._position and self.rank is not None else {})

    def add(self, rank: int, line: int) -> None:
        """Record that another rank has printed it at the position ``line``."""
        if self._positions is None:
            self._positions = self.lines
        self._positions[rank] = line

    @property
    def ranks(self) -> int:
        """Return the number of ranks that printed the line; 0 for a line of the system."""
        return len(self._positions) if self._positions else int(self._position > 0)


class LogBook:
    """The log of one job of ``process_count`` ranks; ``core.view.JobView`` counts its lines.

    A book that starts at a byte in the middle of the log has this byte as ``begin``, so its rows have higher numbers
    than earlier rows. ``mark`` then distinguishes its marks from those of other books.
    """

    def __init__(self, process_count: int = 0, tail: int = TAIL, begin: int = 0, mark: int = 0) -> None:
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
            is_clean = len(line) <= MAX_SHOWN and line.isprintable()  # styled() would not change it
            display_text, styles = (line, ()) if is_clean else styled(line)
            self._add(t, rank, stream, display_text, styles=styles)

    @property
    def open(self) -> list[FoldedRow]:
        """Return the lines that are being redrawn, the most recently redrawn last."""
        return sorted(self._open_rows.values(), key=lambda row: row.revision)

    def knows(self, mark: int) -> bool:
        """Return whether ``mark`` is from this book, or from an equal one in another process."""
        return self._first_mark < mark <= self.mark

    def seal(self, begin: int) -> None:
        """Continue at the byte ``begin`` as a book that starts there: fold no later line into an earlier row."""
        self._recent = _RecentRows()
        self._position = begin

    def everyone(self, row: FoldedRow) -> bool:
        """Return whether all ranks printed the row; False for a job with one rank."""
        return row.ranks == self.process_count > 1

    def changes(self, since: int = 0, limit: int | None = None) -> tuple[list[FoldedRow], int, int]:
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
        return sorted(rows, key=_row_number), mark, remaining

    @property
    def first(self) -> int:
        """Number of the oldest row that is kept."""
        return self.rows[0].n if self.rows else self.next

    def between(self, first: int, before: int) -> list[FoldedRow]:
        """Return the kept rows with numbers from ``first`` on and below ``before``."""
        return [row for row in self.rows if first <= row.n < before]

    def of_rank(self, rank: int) -> list[FoldedRow]:
        """Return the kept rows of one rank in the order in which it printed them."""
        return sorted((row for row in self.rows if rank in row.lines), key=lambda row: row.lines[rank])

    def _add(self, t: float, rank: int | None, stream: str, text: str, redraws: int = 0, styles: Styles = ()) -> None:
        self.mark = revision = self.mark + 1
        is_foldable = isinstance(rank, int) and redraws <= 1
        if isinstance(rank, int):
            self._position += 1
            row = self._recent.find(t, rank, stream, text) if is_foldable else None
            if row is not None:
                row.add(rank, self._position)
                row.revision = revision
                if self._by_change.pop(row.n, None):
                    self._by_change[row.n] = row
                return
            row = FoldedRow(t, rank, stream, text, redraws, styles, self._position)
        else:
            row = FoldedRow(t, None, stream, text, redraws, styles)
        row.n, row.revision = self.next, revision
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
        #: Nearly every text has only one row, which is stored without a list.
        self._by_text: dict[tuple[str, str], FoldedRow | _EqualRows] = {}

    def add(self, row: FoldedRow) -> None:
        """Add a new row."""
        self._rows.append(row)
        match = self._by_text.setdefault((row.stream, row.text), row)
        if match is row:
            return
        if isinstance(match, FoldedRow):
            match = self._by_text[row.stream, row.text] = _EqualRows([match], dict.fromkeys(match.lines, match.n))
        match.rows.append(row)
        match.newest[row.rank or 0] = row.n

    def find(self, t: float, rank: int, stream: str, text: str) -> FoldedRow | None:
        """Return the oldest recent row with this text that comes after the row of the rank's last equal line."""
        rows, by_text = self._rows, self._by_text
        while rows and (t - rows[0].t > WINDOW or len(rows) >= RECENT):
            row = rows.popleft()
            equal = by_text[row.stream, row.text]
            if isinstance(equal, _EqualRows):
                del equal.rows[0]
            if isinstance(equal, FoldedRow) or not equal.rows:
                del by_text[row.stream, row.text]
        match = by_text.get((stream, text))
        if match is None:
            return None
        if isinstance(match, FoldedRow):
            return None if rank in match.lines else match
        index = bisect_right(match.rows, match.newest.get(rank, -1), key=_row_number)
        if index == len(match.rows):
            return None
        match.newest[rank] = match.rows[index].n
        return match.rows[index]


@dataclass(slots=True)
class _EqualRows:
    """Several recent rows with the same text, in order, and the number of the newest row of each rank."""

    rows: list[FoldedRow]
    newest: dict[int, int]


def _row_number(row: FoldedRow) -> int:
    return row.n


# the log in its file ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of the file: its first byte and the number of its first row. A skipped piece was not read."""

    begin: int
    first_row: int
    is_skipped: bool = False


class LogWindow:
    """The log of one job of ``process_count`` ranks in the file ``path``; ``book`` keeps the newest ``tail`` rows."""

    def __init__(self, path: Path, process_count: int = 0, tail: int = TAIL) -> None:
        self.book = LogBook(process_count, tail)
        #: Bytes of the file up to which the log was read.
        self.cursor = 0
        self._path = path
        self._book_size = (process_count, tail)
        self._pieces = [_Piece(0, 0)]
        #: The last piece that was read; a page requests its rows a few at a time.
        self._cached: tuple[tuple[int, int], list[FoldedRow]] | None = None

    def step(self, view: JobView) -> bool:
        """Read more of the log and count its lines in ``view``; return False at the end."""
        end = logfile.size(self._path)
        unread = end - self.cursor
        if unread <= 0:
            return False
        if unread > (BEHIND if self.cursor else LONG):
            return self._skip(view, end)
        stop = min(self.cursor + STEP, end)
        boundary = (self.cursor // PIECE + 1) * PIECE
        if boundary <= stop:
            stop = logfile.line_from(self._path, boundary, end)
        events, cursor = logfile.read(self._path, self.cursor, stop - self.cursor)
        if cursor == self.cursor:
            return False
        self.cursor = cursor
        for event in events:
            view.apply(event)
            self.book.apply(event)
        if cursor >= boundary:
            self.book.seal(cursor)
            self._merge_deleted_pieces()
            self._pieces.append(_Piece(cursor, self.book.next))
        return True

    def _skip(self, view: JobView, end: int) -> bool:
        """Start a new book near the end of the log; the range from the cursor to it is a skipped piece."""
        events, begin, cursor = _read_before(self._path, end, self.cursor)
        if cursor == self.cursor:
            return False
        if begin > self.cursor:
            if self.cursor == self._pieces[-1].begin:
                self._pieces.pop()
            self._merge_deleted_pieces()
            self._pieces += [_Piece(self.cursor, self.book.next, is_skipped=True), _Piece(begin, begin)]
            self.book = LogBook(*self._book_size, begin, (1 + secrets.randbelow(_MAX_BOOKS - 1)) * _MARKS_PER_BOOK)
        logfile.count(self._path, self.cursor, view, cursor)
        self.cursor = cursor
        for event in events:
            self.book.apply(event)
        return True

    def before(self, n: int, limit: int) -> list[FoldedRow]:
        """Return the newest rows with numbers below ``n``, at most ``limit``; [] if there are none."""
        if n > self.book.first:
            return self.book.between(max(self.book.first, n - limit), n)
        self._merge_deleted_pieces()
        while (index := bisect_left(self._pieces, n, key=lambda piece: piece.first_row) - 1) >= 0:
            piece = self._pieces[index]
            if older := [row for row in self._rows(index) if row.n < n]:
                return older[-limit:]
            n = n if piece.is_skipped else piece.first_row
        return []

    def _rows(self, index: int) -> list[FoldedRow]:
        """Read the rows of a piece. Of a skipped piece, only the last rows are read; the rest remains skipped."""
        piece = self._pieces[index]
        next_piece = self._pieces[index + 1] if index + 1 < len(self._pieces) else _Piece(self.cursor, self.book.next)
        if self._cached is not None and self._cached[0] == (piece.begin, next_piece.begin):
            return self._cached[1]
        if piece.is_skipped:
            events, begin, _ = _read_before(self._path, next_piece.begin, piece.begin)
        else:
            events, begin = logfile.between(self._path, piece.begin, next_piece.begin)[0], piece.begin
        book = LogBook(self._book_size[0], 2**62, begin)
        for event in events:
            book.apply(event)
        rows = list(book.rows)
        first = next_piece.first_row - len(rows) if piece.is_skipped else piece.first_row
        for n, row in enumerate(rows, first):
            row.n = n
        if piece.is_skipped:
            self._pieces[index if begin == piece.begin else index + 1 : index + 1] = [_Piece(begin, first)]
        self._cached = ((begin, next_piece.begin), rows)
        return rows

    def _merge_deleted_pieces(self) -> None:
        """Merge the pieces in the deleted part of the log into a skipped one, whose rows are numbered from its end."""
        gap = logfile.gap(self._path)
        if gap is None:
            return
        deleted = [piece for piece in self._pieces if gap[0] <= piece.begin < gap[1]]
        if len(deleted) > 1 or (deleted and not deleted[0].is_skipped):
            index = self._pieces.index(deleted[0])
            self._pieces[index : index + len(deleted)] = [replace(deleted[-1], is_skipped=True)]


def _read_before(path: Path, end: int, floor: int) -> logfile.Ending:
    """Return some lines before the byte ``end``, but none before the byte ``floor``."""
    for ending in logfile.endings(path, end, floor, _CHUNK):
        lines = sum(event["text"].count("\n") + 1 for event in ending.lines if event["type"] == "log")
        if lines >= _MIN_LINES or end - ending.begin >= _MAX_CHUNK:
            break
    return ending

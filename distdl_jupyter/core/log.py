"""The log of a job, folded for reading.

* Equal lines of several ranks within ``WINDOW`` seconds are one row. For each of its ranks, a row has the line number
  in that rank's output; the view of one rank sorts its rows by this number, so it shows the rank's exact output.
* A line that is redrawn (a progress bar) is in ``open`` while it changes and becomes a row when it ends.
* The newest ``tail`` rows are kept; the counts include all lines.

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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
_WANTED, _NEAR, _FAR = 400, 256 * 1024, 64 * 1024 * 1024
#: Number of marks of a book, and of books with different marks. Marks are below 2**53, as JavaScript requires.
_MARKS, _BOOKS = 2**32, 2**20


class FoldedRow:
    """One row: ``n`` is its permanent number, ``t`` is in epoch seconds, ``rank`` printed it first (None: the system).

    ``lines`` maps each rank that printed it to the number of the line in that rank's output, from 1. ``redraws``
    counts how often the line was redrawn, ``styles`` are the styles of its text.
    """

    __slots__ = ("_line", "_more", "n", "rank", "redraws", "revision", "stream", "styles", "t", "text")

    def __init__(
        self, n: int, t: float, rank: int | None, stream: str, text: str, redraws: int = 0, styles: Styles = ()
    ) -> None:
        self.n = n
        self.t = t
        self.rank = rank
        self.stream = stream
        self.text = text
        self.redraws = redraws
        self.styles = styles
        self.revision = 0
        # To save memory, only rows of several ranks have a dict.
        self._line = 0
        self._more: dict[int, int] | None = None

    @property
    def lines(self) -> dict[int, int]:
        """Return the number of the line in the output of each rank."""
        return self._more or ({self.rank: self._line} if self._line and self.rank is not None else {})

    def shift(self, by: int, lines: Mapping[int, int]) -> None:
        """Shift the numbers of the row and of its lines."""
        self.n += by
        if self._more is not None:
            self._more = {rank: line + lines.get(rank, 0) for rank, line in self._more.items()}
        elif self._line and self.rank is not None:
            self._line += lines.get(self.rank, 0)

    def add(self, rank: int, line: int) -> None:
        """Record that a rank has printed it as its line number ``line``."""
        if rank == self.rank and self._more is None:
            self._line = line
        else:
            self._more = {**self.lines, rank: line} if self._more is None else self._more
            self._more[rank] = line

    @property
    def ranks(self) -> int:
        """How many ranks printed the line; 0 for a line of the system."""
        return len(self._more) if self._more else int(self._line > 0)


@dataclass(frozen=True, slots=True)
class Changes:
    """An update of a view: drop rows below ``first``, insert ``rows`` by ``n``, replace ``open``.

    ``rows`` are sorted by ``n``; pass ``mark`` to the next call. ``more`` is the number of changed rows beyond the
    requested number.
    """

    rows: list[FoldedRow]
    open: list[FoldedRow]
    first: int
    mark: int
    more: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The counters with which a book starts in the middle of a log: rows, lines of each rank, marks.

    ``lines`` has the line numbers by rank, ``line`` is the number for all other ranks. No counter may be lower than the
    number of earlier rows or lines. ``mark`` distinguishes the marks of different books.
    """

    n: int = 0
    lines: Mapping[int, int] = field(default_factory=dict)
    line: int = 0
    mark: int = 0


class LogBook:
    """The log of one job of ``process_count`` ranks. Counts: ``total`` lines, ``counts`` and ``errors`` per rank."""

    def __init__(self, process_count: int = 0, tail: int = TAIL, begin: Begin | None = None) -> None:
        self.process_count = process_count
        self.begin = begin or Begin()
        self.rows: deque[FoldedRow] = deque(maxlen=tail)
        #: The rows by number, ordered by their last change, so that changes can be read from the end.
        self._touched: dict[int, FoldedRow] = {}
        self.total = 0
        self.counts: dict[int, int] = {}
        #: Lines on stderr by rank; redrawn lines (progress bars) do not count.
        self.errors: dict[int, int] = {}
        self._open: dict[tuple[int | None, str], FoldedRow] = {}
        self._recent = _Recent()
        #: Number of each rank's newest line; equal to ``counts`` if the book starts at the beginning of the log.
        self._lines = dict(self.begin.lines)
        self._next = self.begin.n
        self._revision = self.begin.mark

    def apply(self, event: Event) -> None:
        """Add one line of the log; types other than log and count are ignored."""
        if event.get("type") != "log":
            if event.get("type") == "count" and event.get("counts") is not None:
                self._count(event)
            return
        t, rank, stream, text = event["t"], event.get("rank"), event.get("stream", "out"), event["text"]
        if event.get("redraws"):
            self._redraw(t, rank, stream, text, event)
            return
        if event.get("counts") is not None:  # lines before it were left out
            self._count(event)
            self._lines |= {rank: max(lines, self._lines.get(rank, 0)) for rank, lines in self.counts.items()}
            self.total -= 1  # the notice replaces one of these lines
            self.seal()
        for line in text.split("\n"):
            clean = len(line) <= MAX_SHOWN and line.isprintable()  # styled() would not change it
            shown, styles = (line, ()) if clean else styled(line)
            self._add(t, rank, stream, shown, styles=styles)

    def _count(self, event: Event) -> None:
        """Set the number of all lines so far, including those that were not read."""
        for number, (lines, errors) in event["counts"].items():
            self.counts[int(number)] = lines
            if errors:
                self.errors[int(number)] = errors
        self.total = event["lines"]

    @property
    def open(self) -> list[FoldedRow]:
        """Return the lines that are being redrawn, the most recently redrawn last."""
        return sorted(self._open.values(), key=lambda row: row.revision)

    @property
    def next(self) -> int:
        """Number of the next row."""
        return self._next

    @property
    def mark(self) -> int:
        """The current mark, for ``changes``."""
        return self._revision

    def knows(self, mark: int) -> bool:
        """Return whether ``mark`` is from this book, or from an equal one in another process."""
        return self.begin.mark < mark <= self._revision

    @property
    def here(self) -> Begin:
        """The counters for a book that starts with the next event."""
        return Begin(self._next, dict(self._lines), self.begin.line, self._revision)

    def seal(self) -> None:
        """Do not fold later lines into earlier rows, so that a book that starts here has the same rows."""
        self._recent = _Recent()

    def everyone(self, row: FoldedRow) -> bool:
        """Return whether all ranks printed the row; False for a job with one rank."""
        return row.ranks == self.process_count > 1

    def changes(self, since: int = 0, most: int | None = None) -> Changes:
        """Return the changes since the mark of an earlier call; 0 returns all kept rows.

        ``most`` limits the rows to those that changed first; the mark then continues with the others.
        """
        rows = self._since(since)
        more = 0 if most is None else max(0, len(rows) - most)
        if more:
            del rows[most:]
        mark = rows[-1].revision if more else self._revision
        rows.sort(key=_number)
        return Changes(rows, self.open, self.first, mark, more)

    @property
    def first(self) -> int:
        """Number of the oldest row that is kept."""
        return self.rows[0].n if self.rows else self._next

    def between(self, first: int, before: int) -> list[FoldedRow]:
        """Return the kept rows with numbers from ``first`` on and below ``before``."""
        return [row for row in self.rows if first <= row.n < before]

    def _since(self, mark: int) -> list[FoldedRow]:
        """Return the rows that changed since a mark, in the order in which they changed."""
        rows = list(takewhile(lambda row: row.revision > mark, reversed(self._touched.values())))
        rows.reverse()
        return rows

    def of_rank(self, rank: int) -> list[FoldedRow]:
        """Return the kept rows of one rank in the order in which it printed them."""
        return sorted((row for row in self.rows if rank in row.lines), key=lambda row: row.lines[rank])

    def _add(self, t: float, rank: int | None, stream: str, text: str, redraws: int = 0, styles: Styles = ()) -> None:
        self.total += 1
        if not isinstance(rank, int):
            self._append(FoldedRow(0, t, None, stream, text, redraws, styles))
            return
        self.counts[rank] = self.counts.get(rank, 0) + 1
        line = self._lines[rank] = self._lines.get(rank, self.begin.line) + 1
        if stream == "err" and not redraws:
            self.errors[rank] = self.errors.get(rank, 0) + 1
        row = self._recent.find(t, rank, stream, text) if redraws <= 1 else None
        if row is not None:
            row.add(rank, line)
            self._touch(row)
            return
        row = FoldedRow(0, t, rank, stream, text, redraws, styles)
        row.add(rank, line)
        self._append(row)
        if redraws <= 1:
            self._recent.add(row)

    def _append(self, row: FoldedRow) -> None:
        row.n = self._next
        self._next += 1
        if len(self.rows) == self.rows.maxlen:
            del self._touched[self.rows[0].n]
        self.rows.append(row)
        self._touched[row.n] = row
        self._revision = row.revision = self._revision + 1

    def _touch(self, row: FoldedRow) -> None:
        self._revision = row.revision = self._revision + 1
        if self._touched.pop(row.n, None):
            self._touched[row.n] = row

    def _redraw(self, t: float, rank: int | None, stream: str, text: str, event: Event) -> None:
        key, redraws = (rank, stream), int(event["redraws"])
        shown, styles = styled(text)
        if event.get("closed"):
            self._open.pop(key, None)
            self._add(t, rank, stream, shown, redraws, styles)
        else:
            self._open[key] = FoldedRow(-1, t, rank, stream, shown, redraws, styles)
            self._touch(self._open[key])


class _Recent:
    """The rows of the last seconds by text, to find the row for an equal line of another rank."""

    def __init__(self) -> None:
        self._rows: deque[FoldedRow] = deque()
        #: Nearly every text has only one row, which is stored without a list.
        self._by_text: dict[tuple[str, str], FoldedRow | _Equal] = {}

    def add(self, row: FoldedRow) -> None:
        """Add a new row."""
        self._rows.append(row)
        key = (row.stream, row.text)
        equal = self._by_text.get(key)
        if equal is None:
            self._by_text[key] = row
            return
        if isinstance(equal, FoldedRow):
            equal = self._by_text[key] = _Equal(equal)
        equal.add(row)

    def find(self, t: float, rank: int, stream: str, text: str) -> FoldedRow | None:
        """Return the oldest recent row with this text that comes after the row of the rank's last equal line."""
        rows = self._rows
        if rows and (t - rows[0].t > WINDOW or len(rows) >= RECENT):
            self._forget(t)
        equal = self._by_text.get((stream, text))
        if equal is None:
            return None
        if isinstance(equal, FoldedRow):
            return None if rank in equal.lines else equal
        return equal.find(rank)

    def _forget(self, now: float) -> None:
        while self._rows and (now - self._rows[0].t > WINDOW or len(self._rows) >= RECENT):
            row = self._rows.popleft()
            key = (row.stream, row.text)
            equal = self._by_text[key]
            if equal is row or (isinstance(equal, _Equal) and not equal.forget()):
                del self._by_text[key]


class _Equal:
    """Several recent rows with the same text, in order."""

    def __init__(self, first: FoldedRow) -> None:
        self._rows = [first]
        #: Number of the newest row with a line of each rank; equal lines of one rank are separate rows.
        self._held = dict.fromkeys(first.lines, first.n)

    def add(self, row: FoldedRow) -> None:
        """Add a new row."""
        self._rows.append(row)
        self._held[row.rank or 0] = row.n

    def find(self, rank: int) -> FoldedRow | None:
        """Return the oldest row that comes after the newest row of the rank."""
        at = bisect_right(self._rows, self._held.get(rank, -1), key=_number)
        if at == len(self._rows):
            return None
        self._held[rank] = self._rows[at].n
        return self._rows[at]

    def forget(self) -> bool:
        """Drop the oldest row; return False if none is left."""
        del self._rows[0]
        return bool(self._rows)


def _number(row: FoldedRow) -> int:
    return row.n


# the log in its file ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """The byte of the file at which a piece starts, with its counters; ``is_skipped`` is true if it was not read."""

    at: int
    begin: Begin
    is_skipped: bool = False


class LogWindow:
    """The log of one job of ``process_count`` ranks in the file ``path``; ``book`` keeps the newest ``tail`` rows."""

    def __init__(self, path: Path, process_count: int = 0, tail: int = TAIL) -> None:
        self.book = LogBook(process_count, tail)
        #: Bytes of the file up to which the log was read.
        self.cursor = 0
        self._path = path
        self._size = (process_count, tail)
        self._pieces = [_Piece(0, Begin())]
        #: The last piece that was read, because a page requests some of its rows at a time.
        self._cached: tuple[tuple[int, int], list[FoldedRow]] | None = None

    def step(self, view: JobView) -> bool:
        """Read more of the log and count its lines in ``view``; return False at the end."""
        end = logfile.size(self._path)
        unread = end - self.cursor
        if unread <= 0:
            return False
        if unread > (BEHIND if self.cursor else LONG):
            return self._skip(view, end)
        return self._read(view, end)

    def before(self, n: int, most: int) -> list[FoldedRow]:
        """Return the newest rows with numbers below ``n``, at most ``most``; [] if there are none."""
        if n > self.book.first:
            return self.book.between(max(self.book.first, n - most), n)
        self._forget_deleted_pieces()
        while (at := bisect_left(self._pieces, n, key=lambda piece: piece.begin.n) - 1) >= 0:
            piece, end = self._pieces[at], self._end(at)
            rows = self._cut(at, end) if piece.is_skipped else self._whole(piece, end)
            older = [row for row in rows if row.n < n]
            if older:
                return older[-most:]
            n = n if piece.is_skipped else piece.begin.n
        return []

    def _read(self, view: JobView, end: int) -> bool:
        stop = min(self.cursor + STEP, end)
        border = (self.cursor // PIECE + 1) * PIECE
        if border <= stop:
            stop = logfile.line_from(self._path, border, end)
        events, cursor = logfile.read(self._path, self.cursor, stop - self.cursor)
        if cursor == self.cursor:
            return False
        self.cursor = cursor
        for event in events:
            view.apply(event)
            self.book.apply(event)
        if cursor >= border:
            self.book.seal()
            self._forget_deleted_pieces()
            self._pieces.append(_Piece(cursor, self.book.here))
        return True

    def _skip(self, view: JobView, end: int) -> bool:
        events, at, cursor = _logs_before(self._path, end, self.cursor)
        if cursor == self.cursor:
            return False
        if at > self.cursor:
            self._begin_at(at)
        logfile.count(self._path, self.cursor, view, cursor)
        self.cursor = cursor
        for event in events:
            self.book.apply(event)
        book = self.book
        book.total = view.lines
        book.counts = {rank.rank: rank.lines for rank in view.ranks if rank.lines}
        book.errors = {rank.rank: rank.error_lines for rank in view.ranks if rank.error_lines}
        return True

    def _begin_at(self, at: int) -> None:
        """Start a new book at a byte; the range from the cursor to it is a skipped piece."""
        if self.cursor == self._pieces[-1].at:
            self._pieces.pop()
        self._forget_deleted_pieces()
        self._pieces.append(_Piece(self.cursor, self.book.here, is_skipped=True))
        begin = Begin(at, {}, at, (1 + secrets.randbelow(_BOOKS - 1)) * _MARKS)
        self._pieces.append(_Piece(at, begin))
        self.book = LogBook(*self._size, begin)

    def _forget_deleted_pieces(self) -> None:
        """Merge the pieces in the deleted part of the log into a skipped one, whose rows are numbered from its end."""
        missing = logfile.gap(self._path)
        if missing is None:
            return
        deleted = [piece for piece in self._pieces if missing[0] <= piece.at < missing[1]]
        if len(deleted) > 1 or (deleted and not deleted[0].is_skipped):
            at = self._pieces.index(deleted[0])
            self._pieces[at : at + len(deleted)] = [replace(deleted[-1], is_skipped=True)]

    # ---- earlier and skipped parts ----

    def _whole(self, piece: _Piece, end: _Piece) -> list[FoldedRow]:
        """Return all rows of a piece."""
        if self._cached is None or self._cached[0] != (piece.at, end.at):
            book = LogBook(self._size[0], 2**62, piece.begin)
            for event in logfile.between(self._path, piece.at, end.at)[0]:
                book.apply(event)
            self._cached = ((piece.at, end.at), list(book.rows))
        return self._cached[1]

    def _end(self, index: int) -> _Piece:
        if index + 1 < len(self._pieces):
            return self._pieces[index + 1]
        return _Piece(self.cursor, self.book.here)

    def _cut(self, index: int, end: _Piece) -> list[FoldedRow]:
        """Read the end of a skipped piece and return its rows; the rest of it remains skipped."""
        piece = self._pieces[index]
        events, at, _ = _logs_before(self._path, end.at, piece.at)
        book = LogBook(self._size[0], 2**62)
        for event in events:
            book.apply({**event, "counts": None})  # rows and lines are numbered from the end here
        rows, lines = list(book.rows), {r: end.begin.lines.get(r, end.begin.line) - n for r, n in book.counts.items()}
        n = end.begin.n - book.next
        for row in rows:
            row.shift(n, lines)
        cut = _Piece(at, Begin(n, {**end.begin.lines, **lines}, end.begin.line))
        self._pieces[index if at == piece.at else index + 1 : index + 1] = [cut]
        self._cached = ((at, end.at), rows)
        return rows


def _logs_before(path: Path, end: int, floor: int) -> logfile.Ending:
    """Return some lines before the byte ``end``, but none before the byte ``floor``."""
    for ending in logfile.endings(path, end, floor, _NEAR):
        lines = sum(event["text"].count("\n") + 1 for event in ending.lines if event["type"] == "log")
        if lines >= _WANTED or end - ending.begin >= _FAR:
            break
    return ending

"""The newest part of a job's log, read from its file, and any earlier part when it is asked for.

A short log is read from its beginning. A long one is read from its end, and a reader that falls far behind a flood goes
on at the end again: ``book`` then begins anew there. What it left out is never lost, ``before`` reads it from the file.

Rows keep one number for ever, whoever reads them and from where: a book that begins at a byte of the file begins with
the number of that byte, which is never lower than the number of rows before it. What stands between two places is
folded by itself, so each line is in exactly one row.

It knows the log's file, no clock and nobody who shows the rows. How many lines there are it folds into a view.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distdl_jupyter.core import logfile, parts
from distdl_jupyter.core.log import TAIL, Begin, LogBook, Row

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.view import JobView

#: Bytes of log that are read from their beginning, and bytes that a reader may be behind before it skips ahead.
LONG, BEHIND = 8 * 1024 * 1024, 4 * 1024 * 1024
#: Bytes that are folded at a time (more than any line of the file has), and of a piece that is folded by itself.
STEP, PIECE = 512 * 1024, 2 * 1024 * 1024
#: Lines that are looked for before a place, in so many bytes at first and at most.
_WANTED, _NEAR, _FAR = 400, 256 * 1024, 64 * 1024 * 1024
#: Marks of a book that begins in the middle are no others'; all stay below 2**53, for JavaScript.
_MARKS, _BOOKS = 2**32, 2**20


@dataclass(frozen=True, slots=True)
class _Place:
    """A byte of the file where rows are folded afresh, and what they count on from; ``left_out`` up to the next one."""

    at: int
    begin: Begin
    left_out: bool = False


class LogWindow:
    """The log of one job of ``process_count`` ranks in the file ``path``; ``book`` keeps the newest ``kept`` rows."""

    def __init__(self, path: Path, process_count: int = 0, kept: int = TAIL) -> None:
        self.book = LogBook(process_count, kept)
        #: Bytes of the file up to which the log was read.
        self.cursor = 0
        self._path = path
        self._size = (process_count, kept)
        self._places = [_Place(0, Begin())]
        #: The piece that was read last: a page asks for some of its rows at a time.
        self._piece: tuple[tuple[int, int], list[Row]] | None = None

    def step(self, view: JobView) -> bool:
        """Read some more of the log, the lines of which ``view`` counts; False at the end."""
        end = parts.size(self._path)
        unread = end - self.cursor
        if unread <= 0:
            return False
        if unread > (BEHIND if self.cursor else LONG):
            return self._skip(view, end)
        return self._read(view, end)

    def before(self, n: int, most: int) -> list[Row]:
        """Return rows with numbers below ``n``, the newest of them and at most ``most``; [] when there are none."""
        if n > self.book.first:
            return self.book.between(max(self.book.first, n - most), n)
        self._forget_places()
        while (at := bisect_left(self._places, n, key=lambda piece: piece.begin.n) - 1) >= 0:
            piece, end = self._places[at], self._end(at)
            rows = self._cut(at, end) if piece.left_out else self._whole(piece, end)
            older = [row for row in rows if row.n < n]
            if older:
                return older[-most:]
            n = n if piece.left_out else piece.begin.n
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
            self._forget_places()
            self._places.append(_Place(cursor, self.book.here))
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
        """Begin a new book; what the old one read stays a place of its own."""
        if self.cursor == self._places[-1].at:
            self._places.pop()
        self._forget_places()
        self._places.append(_Place(self.cursor, self.book.here, left_out=True))
        begin = Begin(at, {}, at, (1 + secrets.randbelow(_BOOKS - 1)) * _MARKS)
        self._places.append(_Place(at, begin))
        self.book = LogBook(*self._size, begin)

    def _forget_places(self) -> None:
        """Forget the places in what the log itself has left out; what stands behind it is numbered from its end."""
        missing = parts.gap(self._path)
        if missing is None:
            return
        gone = [piece for piece in self._places if missing[0] <= piece.at < missing[1]]
        if len(gone) > 1 or (gone and not gone[0].left_out):
            at = self._places.index(gone[0])
            self._places[at : at + len(gone)] = [replace(gone[-1], left_out=True)]

    # ---- what was read before, or was left out ----

    def _whole(self, piece: _Place, end: _Place) -> list[Row]:
        """Return all rows of a piece."""
        if self._piece is None or self._piece[0] != (piece.at, end.at):
            book = LogBook(self._size[0], 2**62, piece.begin)
            for event in logfile.between(self._path, piece.at, end.at)[0]:
                book.apply(event)
            self._piece = ((piece.at, end.at), list(book.rows))
        return self._piece[1]

    def _end(self, index: int) -> _Place:
        if index + 1 < len(self._places):
            return self._places[index + 1]
        return _Place(self.cursor, self.book.here)

    def _cut(self, index: int, end: _Place) -> list[Row]:
        """Read the end of what was left out and return its rows; the rest stays left out."""
        piece = self._places[index]
        events, at, _ = _logs_before(self._path, end.at, piece.at)
        book = LogBook(self._size[0], 2**62)
        for event in events:
            book.apply({**event, "counts": None})  # rows and lines are counted from the end here
        rows, lines = list(book.rows), {r: end.begin.lines.get(r, end.begin.line) - n for r, n in book.counts.items()}
        n = end.begin.n - book.next
        for row in rows:
            row.shift(n, lines)
        cut = _Place(at, Begin(n, {**end.begin.lines, **lines}, end.begin.line))
        self._places[index if at == piece.at else index + 1 : index + 1] = [cut]
        self._piece = ((at, end.at), rows)
        return rows


def _logs_before(path: Path, end: int, floor: int) -> tuple[list[Event], int, int]:
    """Return the lines right before the byte ``end``, enough to see something, where they begin and the cursor behind.

    Nothing before the byte ``floor`` is read.
    """
    size = _NEAR
    while True:
        begin = max(floor, parts.back(path, end, size))
        at = logfile.line_from(path, begin, end) if begin > floor else floor
        events, cursor = logfile.between(path, at, end)
        lines = sum(event["text"].count("\n") + 1 for event in events if event["type"] == "log")
        if begin == floor or size >= _FAR or lines >= _WANTED:
            return events, at, cursor
        size *= 4

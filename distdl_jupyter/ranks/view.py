"""What the ranks of one cell print, folded for reading: a line that several ranks print is one row.

* Each rank's own order is kept: its lines stand in the rows from top to bottom as it printed them.
* A rank's line joins the next row that says the same. A line of its own goes beside those of the other ranks that
  came as long after the last row that they share, in order of rank; a piece that came at once stays together.
* The newest rows are kept, the counts are of all. A line that is drawn over (a progress bar) is one, in its last shape.

Text is made safe to show (``core.printable``) but not escaped for HTML. Pure: it knows no socket and no screen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from distdl_jupyter.core.printable import printable

#: Rows that are kept.
MOST = 1000
#: A line joins an equal one at most so many rows further down.
_REACH = 64
#: Characters that are kept of a line that has not ended yet.
_LONGEST_OPEN = 20_000


@dataclass(slots=True, eq=False)
class Row:
    """One line; ``lines`` says for each rank that printed it the number of the line in that rank's output, from 1."""

    stream: str
    text: str
    lines: dict[int, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What must be equal for two ranks' lines to be one row."""
        return self.stream, self.text


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring rows of the same ranks, in order of rank."""

    ranks: tuple[int, ...]
    rows: tuple[Row, ...]


class Fold:
    """The lines of one cell on ``ranks``. ``total`` counts the lines of all ranks, ``dropped`` those not kept."""

    def __init__(self, ranks: Sequence[int], most: int = MOST) -> None:
        self.ranks = tuple(ranks)
        self.total = self.dropped = 0
        self._most = most
        self._rows: list[Row] = []
        self._count = dict.fromkeys(self.ranks, 0)
        self._last: dict[int, Row] = {}
        self._shared: dict[int, Row] = {}
        self._open: dict[tuple[int, str], str] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """Take in the next piece of what a rank wrote to a stream ("out" or "err"); it may end within a line."""
        *whole, rest = (self._open.pop((rank, stream), "") + text).split("\n")
        if rest:
            self._open[rank, stream] = _newest(rest)
        if whole:
            self._take(rank, stream, whole)

    def close(self) -> None:
        """Make rows of the lines that have not ended: nothing more will come."""
        for (rank, stream), text in sorted(self._open.items()):
            self._take(rank, stream, [text])
        self._open.clear()

    @property
    def empty(self) -> bool:
        """Say whether nothing was printed."""
        return not self._rows and not self._open and not self.total

    def blocks(self, newest: int | None = None) -> list[Block]:
        """Return the kept rows (the ``newest`` ones when given) and the lines that have not ended, as blocks."""
        rows = self._rows if newest is None else self._rows[-newest:]
        return [Block(ranks, tuple(same)) for ranks, same in groupby([*rows, *self._unended()], key=_ranks_of)]

    def shown(self, newest: int | None = None) -> int:
        """Return how many lines of all ranks ``blocks`` tells."""
        rows = self._rows if newest is None else self._rows[-newest:]
        return sum(len(row.lines) for row in rows)

    def _unended(self) -> Iterator[Row]:
        found: dict[tuple[str, str], Row] = {}
        for (rank, stream), text in sorted(self._open.items()):
            row = _row(stream, text)
            found.setdefault(row.key, row).lines[rank] = self._count[rank] + 1
        yield from found.values()

    def _take(self, rank: int, stream: str, texts: list[str]) -> None:
        """Put whole lines of a rank among the rows."""
        kept = [_row(stream, text) for text in texts[-self._most :]]
        self.total += len(texts)
        self.dropped += len(texts) - len(kept)
        self._count[rank] += len(texts)
        for number, row in enumerate(reversed(kept)):
            row.lines[rank] = self._count[rank] - number
        start = self._behind(rank)
        self._rows[start:] = self._merged(rank, kept, self._rows[start:])
        self._trim()

    def _behind(self, rank: int) -> int:
        """Return the place behind the rank's last row, 0 when that is gone or there is none."""
        last = self._last.get(rank)
        place = next((n for n in range(len(self._rows) - 1, -1, -1) if self._rows[n] is last), -1)
        return place + 1

    def _merged(self, rank: int, own: list[Row], others: list[Row]) -> list[Row]:
        """Return ``others``, the rows behind the rank's last one, with its new lines among them."""
        places: dict[tuple[str, str], list[int]] = {}
        for place, row in enumerate(others):
            places.setdefault(row.key, []).append(place)
        merged: list[Row] = []
        waiting: list[Row] = []
        at = 0
        for row in own:
            match = _next(places.get(row.key, ()), at)
            if match is None:
                waiting.append(row)
                continue
            merged += [*self._among(rank, waiting, others[at:match]), self._joined(rank, row, others[match])]
            waiting, at = [], match + 1
        return [*merged, *self._among(rank, waiting, others[at:])]

    def _joined(self, rank: int, row: Row, other: Row) -> Row:
        other.lines[rank] = row.lines[rank]
        self._last[rank] = other
        for each in other.lines:
            self._shared[each] = other
        return other

    def _among(self, rank: int, own: list[Row], others: list[Row]) -> list[Row]:
        """Return the rows with the rank's own lines put between them as one piece."""
        if not own:
            return others
        since = self._shared.get(rank)
        begun = since.lines[rank] if since else 0
        first, last = own[0].lines[rank] - begun, own[-1].lines[rank] - begun
        place = 0
        for row in others:
            after = _after(row, since)
            if after > last or (after >= first and min(row.lines) > rank):
                break
            place += 1
        self._last[rank] = own[-1]
        return [*others[:place], *own, *others[place:]]

    def _trim(self) -> None:
        gone = len(self._rows) - self._most
        if gone > 0:
            self.dropped += sum(len(row.lines) for row in self._rows[:gone])
            del self._rows[:gone]


def _row(stream: str, text: str) -> Row:
    # A progress bar stands on stderr without being a complaint.
    return Row("out" if "\r" in text else stream, printable(text))


def _ranks_of(row: Row) -> tuple[int, ...]:
    return tuple(sorted(row.lines))


def _next(places: Sequence[int], at: int) -> int | None:
    found = bisect_left(places, at)
    return places[found] if found < len(places) and places[found] - at < _REACH else None


def _after(row: Row, since: Row | None) -> int:
    """Return how many lines behind the row ``since`` its ranks printed a row; 0 when that cannot be said."""
    begun = since.lines if since else dict.fromkeys(row.lines, 0)
    return min((number - begun[rank] for rank, number in row.lines.items() if rank in begun), default=0)


def _newest(text: str) -> str:
    """Return what is to be seen of a line that has not ended: its last drawing, its end when it is very long."""
    drawn = text.rsplit("\r", 2)
    if len(drawn) > 1:
        text = f"\r{drawn[-1] or drawn[-2]}"
    return text[-_LONGEST_OPEN:]


def spans(ranks: Sequence[int]) -> str:
    """Return ranks as they are written for ``%%ranks``: ``0-3``, ``0,2``, ``0-2,5``."""
    ordered = sorted(set(ranks))
    runs = (list(run) for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]))
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ends)

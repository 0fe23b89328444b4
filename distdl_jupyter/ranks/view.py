"""What the ranks of one cell print, folded for reading: a line that several ranks print is shown once.

Ranks run the same code, so their lines go side by side into slots. The lines of one rank after the other are merged
into those of the ranks before it. A line goes into the slot that is as many lines behind the last one that it shares
and says the same but for numbers, else into the next that says just the same; else it gets a slot of its own, behind
those of lower ranks. Each rank's own order is kept.

The newest slots are kept, the counts are of all. A line that is drawn over (a progress bar) is one, in its last shape.
Text is made safe to show (``core.printable``) but not escaped for HTML. Pure: it knows no socket and no screen.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.printable import printable
from distdl_jupyter.ranks.answer import Failures, spans

#: Slots that are kept.
MOST = 1000
#: A line goes into a slot at most so many further down, and is compared with the lines of so many ranks.
_REACH, _COMPARED = 64, 4
#: Characters that are kept of a line that has not ended yet.
_LONGEST_OPEN = 20_000
_NUMBERS = re.compile(r"\d+")


class Line(NamedTuple):
    """One line of one rank.

    ``number`` counts its lines from 1, ``piece`` the pieces in which they came; ``pattern`` is its text without
    numbers.
    """

    stream: str
    text: str
    number: int
    piece: int
    pattern: str


@dataclass(slots=True, eq=False)
class Slot:
    """The lines of some ranks that belong side by side: they have the same ``pattern``."""

    stream: str
    pattern: str
    lines: dict[int, Line]


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring lines that the same ranks printed, as (stream, text); the ranks ascend."""

    ranks: tuple[int, ...]
    rows: tuple[tuple[str, str], ...]


class Fold:
    """The lines of one cell on ``ranks``. ``total`` counts the lines of all ranks."""

    def __init__(self, ranks: Sequence[int], most: int = MOST) -> None:
        self.ranks = tuple(ranks)
        self.total = 0
        self._most = most
        self._pieces = 0
        self._count = dict.fromkeys(self.ranks, 0)
        self._lines: dict[int, deque[Line]] = {rank: deque(maxlen=most) for rank in self.ranks}
        self._open: dict[tuple[int, str], str] = {}
        #: The newest slots, by how many lines they show, until more lines come.
        self._merged: dict[int, list[Slot]] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """Take in the next piece of what a rank wrote to a stream ("out" or "err"); it may end within a line."""
        *whole, rest = (self._open.pop((rank, stream), "") + text).split("\n")
        if rest:
            self._open[rank, stream] = _newest(rest)
        if whole:
            self._take(rank, stream, whole)

    def close(self) -> None:
        """Make whole lines of those that have not ended: nothing more will come."""
        for (rank, stream), text in sorted(self._open.items()):
            self._take(rank, stream, [text])
        self._open.clear()

    def _take(self, rank: int, stream: str, texts: list[str]) -> None:
        """Take whole lines of a rank, one piece."""
        self._pieces += 1
        self._count[rank] += len(texts)
        newest = texts[-self._most :]
        first = self._count[rank] - len(newest) + 1
        self._lines[rank].extend(_line(stream, text, number, self._pieces) for number, text in enumerate(newest, first))
        self.total += len(texts)
        self._merged.clear()

    @property
    def empty(self) -> bool:
        """Say whether nothing was printed."""
        return not self._open and not self.total

    def blocks(self, newest: int | None = None) -> list[Block]:
        """Return the newest lines, about ``newest`` (default: as many as are kept), and those that have not ended."""
        slots = [*self._newest(newest), *self._unended()]
        blocks = [block for run in _runs(slots) for block in _blocks(run)]
        return [_joined(ranks, same) for ranks, same in groupby(blocks, key=lambda block: block.ranks)]

    def left_out(self, newest: int | None = None) -> int:
        """Return how many lines of all ranks ``blocks`` does not tell."""
        return self.total - sum(len(slot.lines) for slot in self._newest(newest))

    def _newest(self, newest: int | None) -> list[Slot]:
        """Return the newest slots that show as many lines."""
        room = most = self._most if newest is None else newest
        if most not in self._merged:
            slots: list[Slot] = []
            for rank, lines in self._lines.items():
                slots = _merge(slots, rank, [*islice(reversed(lines), most)][::-1])
            first = len(slots)
            while first and room > 0:
                first -= 1
                room -= len({line.text for line in slots[first].lines.values()})
            self._merged[most] = slots[first:]
        return self._merged[most]

    def _unended(self) -> Iterable[Slot]:
        slots: dict[str, Slot] = {}
        for (rank, stream), text in sorted(self._open.items()):
            line = _line(stream, text, self._count[rank] + 1, 0)
            slots.setdefault(line.pattern, Slot(line.stream, line.pattern, {})).lines[rank] = line
        return slots.values()


def _merge(slots: list[Slot], rank: int, lines: list[Line]) -> list[Slot]:
    """Return the slots of other ranks with the lines of a rank in or among them."""
    slot_index = _Places(slots)
    merged: list[Slot] = []
    waiting: list[Slot] = []
    shared: Slot | None = None
    at = 0
    for line in lines:
        match = slot_index.find(rank, line, at, shared)
        if match is None:
            waiting.append(Slot(line.stream, line.pattern, {rank: line}))
            continue
        shared = slots[match]
        shared.lines[rank] = line
        merged += [*slots[at:match], *waiting, shared]
        waiting, at = [], match + 1
    return [*merged, *slots[at:], *waiting]


class _Places:
    """Where slots are found by the text of their lines, and by the number that a rank gave them."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._texts: dict[str, list[int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        for position, slot in enumerate(slots):
            lines = [*islice(slot.lines.items(), _COMPARED)]
            for text in {line.text for _, line in lines}:
                self._texts.setdefault(text, []).append(position)
            self._numbers.update(((rank, line.number), position) for rank, line in lines)
        self._ranks = dict.fromkeys(rank for rank, _ in self._numbers)

    def find(self, rank: int, line: Line, at: int, shared: Slot | None) -> int | None:
        """Return the place from ``at`` on of the slot that a line goes into, None where it needs one of its own.

        It comes as many lines behind the last slot that the rank shares, or behind the beginning, and says the same but
        for numbers; else it is the next that says the same.
        """
        behind = line.number - (shared.lines[rank].number if shared else 0)
        for other in islice(shared.lines if shared else self._ranks, _COMPARED):
            number = (shared.lines[other].number if shared else 0) + behind
            position = self._numbers.get((other, number), -1)
            if position >= at and self._slots[position].pattern == line.pattern:
                return position
        alike = self._texts.get(line.text, ())
        n = bisect_left(alike, at)
        return alike[n] if n < len(alike) and alike[n] - at < _REACH else None


def _line(stream: str, text: str, number: int, piece: int) -> Line:
    # A progress bar is written to stderr without being a complaint.
    stream = "out" if "\r" in text else stream
    text = printable(text)
    return Line(stream, text, number, piece, _NUMBERS.sub("0", f"{stream} {text}"))


def _runs(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Yield slots whose lines differ and came in one piece from each rank together, all others alone."""
    run: list[Slot] = []
    for slot in slots:
        if run and not _tied(run[-1], slot):
            yield run
            run = []
        run.append(slot)
    if run:
        yield run


def _tied(first: Slot, other: Slot) -> bool:
    pieces = [{rank: line.piece for rank, line in slot.lines.items()} for slot in (first, other)]
    return pieces[0] == pieces[1] and _differs(first) and _differs(other)


def _differs(slot: Slot) -> bool:
    return len({line.text for line in slot.lines.values()}) > 1


def _blocks(run: Sequence[Slot]) -> Iterator[Block]:
    """Yield what each rank printed in these slots, equal ones as one block, in order of the first rank."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(run[0].lines):
        groups.setdefault(tuple((slot.stream, slot.lines[rank].text) for slot in run), []).append(rank)
    for rows, ranks in groups.items():
        yield Block(tuple(ranks), rows)


def _joined(ranks: tuple[int, ...], blocks: Iterator[Block]) -> Block:
    return Block(ranks, tuple(row for block in blocks for row in block.rows))


def _newest(text: str) -> str:
    """Return what is to be seen of a line that has not ended: its last drawing, its end when it is very long."""
    drawn = text.rsplit("\r", 2)
    if len(drawn) > 1:
        text = f"\r{drawn[-1] or drawn[-2]}"
    return text[-_LONGEST_OPEN:]


# as plain text: for terminals and for readers without HTML --------------------------------------------


def text(fold: Fold, failed: Failures | None, *, job: str, newest: int | None = None) -> str:
    """Return a line such as ``[0-3] loss 0.31`` for each row, then the failure. ``job`` is the ranks' short id."""
    blocks = fold.blocks(newest)
    heads = [f"[{spans(block.ranks)}] " if len(fold.ranks) > 1 else "" for block in blocks]
    lines = [f"{head}{text}" for head, block in zip(heads, blocks, strict=True) for _, text in block.rows]
    earlier = left_out(fold, job, newest)
    return "\n".join([*([earlier] if earlier else []), *lines, *(_failure(failed) if failed else [])])


def left_out(fold: Fold, job: str, newest: int | None = None) -> str:
    """Return the sentence about lines that are not shown, "" when all are."""
    missing = fold.left_out(newest)
    return (
        f"{plural(missing, 'earlier line')} not shown; print the whole log with %dist_logs {job}" if missing > 0 else ""
    )


def _failure(failed: Failures) -> list[str]:
    if failed.interrupted:
        return [failed.sentence()]
    hint = str(failed.error.get("hint", ""))
    trace = str(failed.error.get("traceback", "")).rstrip().splitlines()
    return [f"{failed.sentence()} {hint}".strip(), *trace, *failed.rest()]

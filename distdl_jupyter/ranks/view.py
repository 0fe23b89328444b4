"""What the ranks of one cell print, folded for reading: a line that several ranks print is shown once.

Ranks run the same code, so their lines go side by side into slots. A rank's line goes into the slot that is as many
lines behind the last one that it shares and says the same but for numbers, else into the next that says just the same;
else it gets a slot of its own, in order of rank. Each rank's own order is kept.

The newest slots are kept, the counts are of all. A line that is drawn over (a progress bar) is one, in its last shape.
Text is made safe to show (``core.printable``) but not escaped for HTML. Pure: it knows no socket and no screen.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.printable import printable
from distdl_jupyter.ranks.answer import Failures, spans

#: Slots that are kept.
MOST = 1000
#: A line goes into a slot at most so many further down.
_REACH = 64
#: Characters that are kept of a line that has not ended yet.
_LONGEST_OPEN = 20_000
_NUMBERS = re.compile(r"\d+")


class Line(NamedTuple):
    """One line of one rank; ``number`` counts its lines from 1, ``piece`` the pieces in which they came."""

    text: str
    number: int
    piece: int


@dataclass(slots=True, eq=False)
class Slot:
    """The lines of some ranks that belong side by side; ``pattern`` is their text without numbers."""

    stream: str
    pattern: str
    lines: dict[int, Line] = field(default_factory=dict)


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
        self._slots: list[Slot] = []
        self._pieces = 0
        self._count = dict.fromkeys(self.ranks, 0)
        self._last: dict[int, Slot] = {}
        self._shared: dict[int, Slot] = {}
        self._open: dict[tuple[int, str], str] = {}

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

    @property
    def empty(self) -> bool:
        """Say whether nothing was printed."""
        return not self._open and not self.total

    def blocks(self, newest: int | None = None) -> list[Block]:
        """Return the newest lines, about ``newest`` (default: as many as are kept), and those that have not ended."""
        kept = self._newest(newest)
        found = [block for run in _runs([*kept, *self._unended()]) for block in _blocks(run)]
        return [_one(ranks, same) for ranks, same in groupby(found, key=lambda block: block.ranks)]

    def left_out(self, newest: int | None = None) -> int:
        """Return how many lines of all ranks ``blocks`` does not tell."""
        return self.total - sum(len(slot.lines) for slot in self._newest(newest))

    def _newest(self, lines: int | None) -> list[Slot]:
        """Return the newest slots that show as many lines."""
        room = self._most if lines is None else lines
        place = len(self._slots)
        while place and room > 0:
            place -= 1
            room -= len({line.text for line in self._slots[place].lines.values()})
        return self._slots[place:]

    def _unended(self) -> Iterator[Slot]:
        found: dict[str, Slot] = {}
        for (rank, stream), text in sorted(self._open.items()):
            slot = _slot(rank, stream, text, self._count[rank] + 1, 0)
            found.setdefault(slot.pattern, slot).lines.update(slot.lines)
        yield from found.values()

    def _take(self, rank: int, stream: str, texts: list[str]) -> None:
        """Put whole lines of a rank, one piece, into slots."""
        self._pieces += 1
        self.total += len(texts)
        self._count[rank] += len(texts)
        kept = texts[-self._most :]
        first = self._count[rank] - len(kept) + 1
        own = [_slot(rank, stream, text, number, self._pieces) for number, text in enumerate(kept, first)]
        start = self._behind(rank)
        self._slots[start:] = self._merged(rank, own, self._slots[start:])
        del self._slots[: -self._most]

    def _behind(self, rank: int) -> int:
        """Return the place behind the rank's last slot, 0 when that is gone or there is none."""
        last = self._last.get(rank)
        place = next((n for n in range(len(self._slots) - 1, -1, -1) if self._slots[n] is last), -1)
        return place + 1

    def _merged(self, rank: int, own: list[Slot], others: list[Slot]) -> list[Slot]:
        """Return ``others``, the slots behind the rank's last one, with its new lines in or among them."""
        places = _Places(others)
        merged: list[Slot] = []
        waiting: list[Slot] = []
        at = 0
        for slot in own:
            match = places.beside(slot, at, self._after(rank, slot), self._shared.get(rank))
            match = places.of(slot.lines[rank].text, at) if match is None else match
            if match is None:
                waiting.append(slot)
                continue
            merged += [*self._among(rank, waiting, others[at:match]), self._joined(rank, slot, others[match])]
            waiting, at = [], match + 1
        return [*merged, *self._among(rank, waiting, others[at:])]

    def _after(self, rank: int, slot: Slot) -> int:
        """Return how many lines behind the last slot that it shares a rank's line comes."""
        since = self._shared.get(rank)
        return slot.lines[rank].number - (since.lines[rank].number if since else 0)

    def _joined(self, rank: int, own: Slot, slot: Slot) -> Slot:
        slot.lines[rank] = own.lines[rank]
        self._last[rank] = slot
        for each in slot.lines:
            self._shared[each] = slot
        return slot

    def _among(self, rank: int, own: list[Slot], others: list[Slot]) -> list[Slot]:
        """Return the slots with the rank's own put between them as one piece."""
        if not own:
            return others
        first, last = own[0].lines[rank].number, own[-1].lines[rank].number
        place = 0
        for slot in others:
            number = _number(rank, slot, self._shared.get(rank))
            if number > last or (number >= first and min(slot.lines) > rank):
                break
            place += 1
        self._last[rank] = own[-1]
        return [*others[:place], *own, *others[place:]]


class _Places:
    """Where slots are found by the text of their lines, and by the number that a rank gave them."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._texts: dict[str, list[int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        for place, slot in enumerate(slots):
            for text in {line.text for line in slot.lines.values()}:
                self._texts.setdefault(text, []).append(place)
            for rank, line in slot.lines.items():
                self._numbers[rank, line.number] = place
        self._ranks = {rank for rank, _ in self._numbers}

    def of(self, text: str, at: int) -> int | None:
        """Return the next place from ``at`` on that holds the text."""
        found = self._texts.get(text, ())
        n = bisect_left(found, at)
        return found[n] if n < len(found) and found[n] - at < _REACH else None

    def beside(self, slot: Slot, at: int, after: int, since: Slot | None) -> int | None:
        """Return the place from ``at`` on that comes equally far behind ``since`` and is the same but for numbers.

        For ranks that have no part in ``since`` it comes equally far behind the beginning.
        """
        (own,) = slot.lines.values()
        found = -1
        for rank in self._ranks:
            begun = since.lines.get(rank) if since else None
            place = self._numbers.get((rank, begun.number + after if begun else own.number), -1)
            if place >= at and self._slots[place].pattern == slot.pattern:
                found = place if found < 0 else min(found, place)
        return found if found >= 0 else None


def _slot(rank: int, stream: str, text: str, number: int, piece: int) -> Slot:
    # A progress bar stands on stderr without being a complaint.
    stream = "out" if "\r" in text else stream
    text = printable(text)
    return Slot(stream, _NUMBERS.sub("0", f"{stream} {text}"), {rank: Line(text, number, piece)})


def _number(rank: int, slot: Slot, since: Slot | None) -> int:
    """Return the number that a rank's line would have beside a slot.

    It comes as many lines behind ``since`` as those of the slot, or behind the beginning where they have no part in it.
    """
    begun = {each: line.number for each, line in since.lines.items()} if since else {}
    known = [line.number - begun[each] + begun[rank] for each, line in slot.lines.items() if each in begun]
    return min(known or (line.number for line in slot.lines.values()))


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


def _tied(one: Slot, other: Slot) -> bool:
    pieces = [{rank: line.piece for rank, line in slot.lines.items()} for slot in (one, other)]
    return pieces[0] == pieces[1] and _differs(one) and _differs(other)


def _differs(slot: Slot) -> bool:
    return len({line.text for line in slot.lines.values()}) > 1


def _blocks(run: Sequence[Slot]) -> Iterator[Block]:
    """Yield what each rank printed in these slots, equal ones as one block, in order of the first rank."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(run[0].lines):
        groups.setdefault(tuple((slot.stream, slot.lines[rank].text) for slot in run), []).append(rank)
    for rows, ranks in groups.items():
        yield Block(tuple(ranks), rows)


def _one(ranks: tuple[int, ...], blocks: Iterator[Block]) -> Block:
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

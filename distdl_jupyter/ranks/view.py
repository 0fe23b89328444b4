"""The output of the ranks of one cell, folded so that a line that several ranks print is shown once.

Ranks run the same code, so a slot has the matching lines of several ranks. The lines are merged rank by rank. A line
joins the slot at the same distance from the last shared slot if their texts differ only in numbers, else the next slot
with exactly the same text, else it gets a new slot after those of lower ranks. Each rank's lines stay in order.

Only the newest slots are stored; counts include all lines. A redrawn line (a progress bar) counts once, with its last
text. Text is made safe to print (``core.humanize``) but not escaped for HTML.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import dropwhile, groupby, islice
from typing import Any, NamedTuple

from distdl_jupyter.core import humanize
from distdl_jupyter.core.humanize import format_spans, name_ranks, plural, printable
from distdl_jupyter.html.page import RANK_COLOURS, THEME, render
from distdl_jupyter.ranks.answer import Failures, describe_error

#: Maximum number of stored slots.
_MAX_SLOTS = 1000
#: Maximum number of slots ahead that a line may match.
_MAX_DISTANCE = 64
#: Maximum number of ranks that a line is compared with.
_MAX_COMPARED_RANKS = 4
#: Maximum number of stored characters of an unfinished line.
_MAX_PARTIAL_CHARS = 20_000
#: Maximum number of frames of an error that are shown.
_MAX_FRAMES = 12
_NUMBER_PATTERN = re.compile(r"\d+")


class RankLine(NamedTuple):
    """One line of one rank.

    ``number`` counts the rank's lines from 1, ``chunk`` is the number of the chunk of output that it arrived in, and
    ``pattern`` is its stream and text with all numbers replaced.
    """

    stream: str
    text: str
    number: int
    chunk: int
    pattern: str


#: Matching lines of several ranks, by rank; all have the same ``pattern``.
Slot = dict[int, RankLine]


class Block(NamedTuple):
    """Adjacent lines that the same ranks printed, as (stream, text), with the ranks in ascending order."""

    ranks: tuple[int, ...]
    rows: tuple[tuple[str, str], ...]


class OutputFold:
    """The lines of one cell on ``ranks``. ``total`` counts the lines of all ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.total = 0
        self._chunk_count = 0
        self._line_counts = dict.fromkeys(self.ranks, 0)
        self._lines: dict[int, deque[RankLine]] = {rank: deque(maxlen=_MAX_SLOTS) for rank in self.ranks}
        self._partial_lines: dict[tuple[int, str], str] = {}
        #: The newest slots by maximum number of lines, until more lines arrive.
        self._merge_cache: dict[int, list[Slot]] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """Add the next chunk that a rank wrote to a stream ("out" or "err"); it may end within a line."""
        *complete, partial = (self._partial_lines.pop((rank, stream), "") + text).split("\n")
        if partial:
            # Only the last redraw of an unfinished line is visible.
            redraws = partial.rsplit("\r", 2)
            partial = f"\r{redraws[-1] or redraws[-2]}" if len(redraws) > 1 else partial
            self._partial_lines[rank, stream] = partial[-_MAX_PARTIAL_CHARS:]
        if complete:
            self._add_lines(rank, stream, complete)

    def close(self) -> None:
        """Complete all unfinished lines; no more output will arrive."""
        for (rank, stream), text in sorted(self._partial_lines.items()):
            self._add_lines(rank, stream, [text])
        self._partial_lines.clear()

    def _add_lines(self, rank: int, stream: str, texts: list[str]) -> None:
        self._chunk_count += 1
        self.total += len(texts)
        self._line_counts[rank] += len(texts)
        newest = texts[-_MAX_SLOTS:]
        first = self._line_counts[rank] - len(newest) + 1
        lines = (_make_line(stream, text, number, self._chunk_count) for number, text in enumerate(newest, first))
        self._lines[rank].extend(lines)
        self._merge_cache.clear()

    def build_blocks(self, newest: int | None = None) -> list[Block]:
        """Return about ``newest`` lines (default: all stored ones), followed by the unfinished ones."""
        unfinished: dict[str, Slot] = {}
        for (rank, stream), text in sorted(self._partial_lines.items()):
            line = _make_line(stream, text, self._line_counts[rank] + 1, 0)
            unfinished.setdefault(line.pattern, {})[rank] = line
        # Adjacent slots whose lines differ stay together if they arrived in one chunk from each rank, such as an array.
        runs: list[list[Slot]] = []
        previous_chunks = None
        for slot in [*self._merge_newest(newest), *unfinished.values()]:
            differs = len({line.text for line in slot.values()}) > 1
            chunks = {rank: line.chunk for rank, line in slot.items()} if differs else None
            if chunks is not None and chunks == previous_chunks:
                runs[-1].append(slot)
            else:
                runs.append([slot])
            previous_chunks = chunks
        parts = []
        for run in runs:
            # One block for each distinct output, ordered by its first rank.
            groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
            for rank in sorted(run[0]):
                groups.setdefault(tuple((slot[rank].stream, slot[rank].text) for slot in run), []).append(rank)
            parts += [Block(tuple(ranks), rows) for rows, ranks in groups.items()]
        joined = groupby(parts, key=lambda block: block.ranks)
        return [Block(ranks, tuple(row for block in blocks for row in block.rows)) for ranks, blocks in joined]

    def count_omitted(self, newest: int | None = None) -> int:
        """Return how many lines of all ranks are missing from ``build_blocks``."""
        return self.total - sum(map(len, self._merge_newest(newest)))

    def _merge_newest(self, newest: int | None) -> list[Slot]:
        """Return the newest slots, which together show about ``newest`` lines."""
        remaining = limit = _MAX_SLOTS if newest is None else newest
        if limit not in self._merge_cache:
            slots: list[Slot] = []
            for rank, lines in self._lines.items():
                slots = _merge(slots, rank, [*islice(reversed(lines), limit)][::-1])
            first = len(slots)
            while first and remaining > 0:
                first -= 1
                remaining -= len({line.text for line in slots[first].values()})
            self._merge_cache[limit] = slots[first:]
        return self._merge_cache[limit]


def _make_line(stream: str, text: str, number: int, chunk: int) -> RankLine:
    # Progress bars are written to stderr but are not errors.
    stream = "out" if "\r" in text else stream
    text = printable(text)
    return RankLine(stream, text, number, chunk, _NUMBER_PATTERN.sub("0", f"{stream} {text}"))


def _merge(slots: list[Slot], rank: int, lines: list[RankLine]) -> list[Slot]:
    """Merge the lines of a rank into the slots of other ranks."""
    by_text: dict[str, list[int]] = {}
    by_number: dict[tuple[int, int], int] = {}
    for position, slot in enumerate(slots):
        compared = [*islice(slot.items(), _MAX_COMPARED_RANKS)]
        for text in {line.text for _, line in compared}:
            by_text.setdefault(text, []).append(position)
        by_number.update(((other, line.number), position) for other, line in compared)
    others = dict.fromkeys(other for other, _ in by_number)
    merged: list[Slot] = []
    new_slots: list[Slot] = []
    shared: Slot = {}
    start = 0

    def find_slot(line: RankLine) -> int | None:
        """Return the position, ``start`` or later, of the slot that a line joins, or None if it needs a new one."""
        distance = line.number - (shared[rank].number if shared else 0)
        for other in islice(shared or others, _MAX_COMPARED_RANKS):
            position = by_number.get((other, (shared[other].number if shared else 0) + distance), -1)
            if position >= start and next(iter(slots[position].values())).pattern == line.pattern:
                return position
        positions = by_text.get(line.text, ())
        index = bisect_left(positions, start)
        return positions[index] if index < len(positions) and positions[index] - start < _MAX_DISTANCE else None

    for line in lines:
        match = find_slot(line)
        if match is None:
            new_slots.append({rank: line})
            continue
        shared = slots[match]
        shared[rank] = line
        merged += [*slots[start:match], *new_slots, shared]
        new_slots, start = [], match + 1
    return [*merged, *slots[start:], *new_slots]


def render_text(fold: OutputFold, failed: Failures | None, *, job: str, newest: int | None = None) -> str:
    """Return a line such as ``[0-3] loss 0.31`` for each row, then the failure. ``job`` is the short id of the job."""
    omission = _describe_omission(fold, job, newest)
    lines = [omission] if omission else []
    for block in fold.build_blocks(newest):
        prefix = f"[{format_spans(block.ranks)}] " if len(fold.ranks) > 1 else ""
        lines += [f"{prefix}{text}" for _, text in block.rows]
    if failed is not None and failed.is_interrupt:
        lines.append(failed.summary)
    elif failed is not None:
        trace = str(failed.error.get("traceback", "")).rstrip().splitlines()
        lines += [f"{failed.summary} {failed.error.get('hint', '')}".strip(), *trace, *failed.describe_others()]
    return "\n".join(lines)


def _describe_omission(fold: OutputFold, job: str, newest: int | None = None) -> str:
    """Return a message about the lines that are not shown, or "" if all are."""
    missing = fold.count_omitted(newest)
    text = f"{plural(missing, 'earlier line')} not shown. Print the whole log with %dist_logs {job}"
    return text if missing else ""


def render_cell(
    fold: OutputFold, failed: Failures | None = None, *, job: str, status: str = "", newest: int | None = None
) -> str:
    """Return the HTML of a cell so far. ``status`` is a sentence about running ranks, or "" at the end.

    ``job`` is the short id of the ranks' job, ``newest`` the maximum number of rows (default: all stored ones).
    """
    blocks = [
        {
            "ranks": _build_badge(block.ranks) if len(fold.ranks) > 1 else None,
            "runs": [(stream, [text for _, text in rows]) for stream, rows in groupby(block.rows, lambda row: row[0])],
        }
        for block in fold.build_blocks(newest)
    ]
    failure = None if failed is None or failed.is_interrupt else _describe_failure(failed)
    omission = _describe_omission(fold, job, newest)
    return render("ranks.html", THEME, blocks=blocks, omission=omission, failed=failed, failure=failure, status=status)


def render_values(groups: Sequence[tuple[Sequence[int], Mapping[str, str]]]) -> str:
    """Return the HTML of values. Each group has the ranks with an equal value, and its forms by MIME type."""
    values = []
    for ranks, bundle in groups:
        # The richest form is shown, else the text.
        pictures = (f"data:{mime};base64,{bundle[mime]}" for mime in ("image/png", "image/jpeg") if bundle.get(mime))
        lines = [printable(line) for line in bundle.get("text/plain", "None").split("\n")]
        value = {"html": bundle.get("text/html", ""), "picture": next(pictures, ""), "lines": lines}
        values.append((_build_badge(ranks), value))
    return render("ranks.html", THEME, values=values)


def describe_running(ranks: Sequence[int], finished: Sequence[int], seconds: float) -> str:
    """Return the status of a running cell, such as ``Ranks 2-3 are still running, 12 s``."""
    running = [rank for rank in ranks if rank not in finished] or ranks
    verb = f"{'is' if len(running) == 1 else 'are'}{' still' if finished else ''} running"
    return f"{name_ranks(running).capitalize()} {verb}, {humanize.duration(seconds)}."


def _build_badge(ranks: Sequence[int]) -> dict[str, str]:
    """Return a badge of ranks as in the log: a single rank in its colour, several ranks in grey."""
    if len(ranks) > 1:
        return {"text": format_spans(ranks), "colour": "", "classes": "dd-rn"}
    number = ranks[0] % len(RANK_COLOURS)
    colour = f"color-mix(in srgb,var(--dd-rank-{number},{RANK_COLOURS[number]}) 72%,{THEME['ink']})"
    return {"text": format_spans(ranks), "colour": colour, "classes": f"dd-rn dd-rank-{number}"}


def _describe_failure(failed: Failures) -> dict[str, Any]:
    error = failed.error
    frames = [frame for frame in error.get("frames") or [] if frame.get("kind") != "worker"]
    with_source = [frame for frame in frames if frame.get("source")][-_MAX_FRAMES:]
    summary = "; ".join(f"{name_ranks(ranks)}: {text.partition(':')[0]}" for ranks, text in failed.others)
    return {
        "what": describe_error(error),
        "hint": error.get("hint", ""),
        # Leading empty lines are dropped, because the number of magic lines above the code is not known here.
        "frames": [
            {**frame, "source": list(dropwhile(lambda line: not str(line[1]).strip(), frame["source"]))}
            for frame in with_source
        ],
        "hidden": len(frames) - len(with_source),
        "traceback": str(error.get("traceback", "")).rstrip(),
        "others": f"{plural(sum(len(ranks) for ranks, _ in failed.others), 'other rank')} failed too ({summary})",
        "rest": failed.describe_others(),
    }

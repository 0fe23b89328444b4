"""The stacks of all ranks side by side: for pages as plain data, and as columns of text.

Ranks at the same line share a column; those that differ from the others come first. The newest call is at the top. In
text the user's own calls have their source line, and consecutive calls of libraries share one line.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distdl_jupyter.core import collectives, table
from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.humanize import clock, count, duration, plural, ranks
from distdl_jupyter.core.stacks import Frame, Taken, Thread
from distdl_jupyter.views.card import StacksWhy, stacks_why
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distdl_jupyter.core.stacks import RankGroup

#: Maximum number of threads and frames; more are a pool or a recursion.
_MOST_THREADS, _MOST_FRAMES = 40, 60
_WHY = {
    "asked": "",
    "stall": ", captured because of no progress",
    "hang": ", captured before the job was stopped as hung",
    "time": ", captured at the time limit of the job",
    "failure": ", captured when a rank failed",
}
#: Minimum width of a column in characters, and the space between two.
_NARROWEST, _BETWEEN = 44, 3
#: Maximum number of threads of a rank, besides the main one, in the text.
_THREADS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class StackPlace:
    """One rank when its stack was captured: ``state`` of its process, last ``step``, ``silent`` seconds."""

    rank: int
    host: str
    pid: int | None
    state: str
    step: float | None
    silent: float | None


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads are at the same line; ``frames`` newest first, ``at`` describes the location."""

    ranks: tuple[int, ...]
    at: str
    differs: bool
    frames: tuple[Frame, ...]
    #: Of the first of the ranks.
    threads: tuple[Thread, ...]
    places: tuple[StackPlace, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of all ranks at one moment, side by side: the groups with the fewest ranks first.

    ``says`` tells as a clause which ranks are where.
    """

    number: int
    t: float
    why: StacksWhy
    says: str
    groups: tuple[StackGroup, ...]
    #: The reason of each rank that sent none.
    missing: dict[int, str]
    #: Why the ranks wait and what to do, as sentences; "" if their last collective operations do not show it.
    explanation: str
    collectives: tuple[Collective, ...]


def stacks(taken: Taken) -> Stacks:
    """Return the stacks for a page, the ranks that differ from the others first."""
    return from_fields(
        Stacks,
        taken,
        why=stacks_why(taken.why),
        says=taken.sentence,
        groups=tuple(_group(taken, group) for group in taken.groups()),
    )


def _group(taken: Taken, group: RankGroup) -> StackGroup:
    differ = set(taken.differ)
    members = [taken.ranks[rank] for rank in group.ranks]
    return StackGroup(
        ranks=group.ranks,
        at=group.position,
        differs=all(rank in differ for rank in group.ranks),
        frames=_frames(group.thread),
        threads=tuple(replace(thread, frames=_frames(thread)) for thread in members[0].others[:_MOST_THREADS]),
        places=tuple(from_fields(StackPlace, member) for member in members),
    )


def _frames(thread: Thread) -> tuple[Frame, ...]:
    """Return the frames of a thread, newest first, down to the user's code."""
    return tuple((_own_frames(thread) or thread.frames)[:_MOST_FRAMES])


def _own_frames(thread: Thread) -> list[Frame]:
    """Return the frames of a thread, newest first, without the worker's that led to the user's code."""
    frames = list(thread.frames)
    while frames and frames[-1].kind == "worker":
        frames.pop()
    return frames


class StacksShown(table.Display, Taken):
    """Stacks that display themselves, in as many columns as fit into the terminal."""

    def _parts(self) -> list[str | table.Rows]:
        width = shutil.get_terminal_size((120, 24)).columns
        blocks = [[_title(self, group), *_lines(self, group)] for group in self.groups()]
        across = max(1, min(len(blocks), (width + _BETWEEN) // (_NARROWEST + _BETWEEN)))
        column = (width + _BETWEEN) // across - _BETWEEN
        parts: list[str | table.Rows] = [*_head(self)]
        if self.collectives:
            parts += ["", collectives.texts(self.collectives)]
        for at in range(0, len(blocks), across):
            parts += ["", table.CodeBlock("\n".join(_beside(blocks[at : at + across], column)))]
        return parts


def _head(taken: Taken) -> list[str]:
    many = len(taken.ranks) + len(taken.missing)
    lines = [f"Stacks of {plural(many, 'rank')} at {clock(taken.t)}{_WHY.get(taken.why, '')}"]
    if taken.sentence:
        lines.append(f"{taken.sentence[0].upper()}{taken.sentence[1:]}.")
    if taken.explanation:
        lines.append(taken.explanation)
    alike: dict[str, list[int]] = {}
    for rank, why in sorted(taken.missing.items()):
        alike.setdefault(why, []).append(rank)
    return lines + [f"{ranks(who).capitalize()} sent no stacks: {why}" for why, who in alike.items()]


def _lines(taken: Taken, group: RankGroup) -> Iterator[str]:
    first = taken.ranks[group.ranks[0]]
    yield from _calls(group.thread)
    others = first.others
    with_own = [thread for thread in others if thread.own is not None]
    for thread in with_own[:_THREADS_SHOWN]:
        yield f"another thread{f' ({thread.name})' if thread.name else ''}:"
        yield from (f"  {line}" for line in _calls(thread))
    rest = len(others) - len(with_own[:_THREADS_SHOWN])
    if rest:
        yield f"and {plural(rest, 'thread')} of libraries"


def _title(taken: Taken, group: RankGroup) -> str:
    members = [taken.ranks[rank] for rank in group.ranks]
    first = members[0]
    states = ", ".join(dict.fromkeys(member.state for member in members if member.state))
    silent = min((member.silent for member in members if member.silent is not None), default=None)
    parts = [states, f"step {count(first.step)}" if first.step is not None else "",
             f"no progress for {duration(silent)}" if silent is not None else ""]  # fmt: skip
    return f"{ranks(group.ranks).capitalize()}: {', '.join(filter(None, parts))}".rstrip(": ")


def _calls(thread: Thread) -> Iterator[str]:
    frames = _own_frames(thread)
    if not frames:
        yield "code outside the job"
    for is_own, run in itertools.groupby(frames, lambda frame: frame.own):
        if is_own:
            for frame in run:
                yield f"{frame.place}, in {frame.function}"
                if frame.source:
                    yield f"    {frame.source}"
        else:
            newest, *below = run
            more = f" and {plural(len(below), 'call')} below" if below else ""
            yield f"· {newest.place}, in {newest.function}{more}"


def _beside(blocks: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for row in itertools.zip_longest(*blocks, fillvalue=""):
        cells = (cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell in row)
        yield (" " * _BETWEEN).join(cell.ljust(width) for cell in cells).rstrip()

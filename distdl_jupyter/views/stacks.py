"""The stacks of all ranks, for pages as plain data and as text.

Ranks at the same line share a block; ranks that differ from the others come first. The newest call is at the top. The
text shows the source line of the user's calls, and consecutive library calls on one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdl_jupyter.core import collectives, table
from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.humanize import clock, count, duration, plural, ranks
from distdl_jupyter.core.stacks import Frame, RankGroup, RankStacks, StackSnapshot, Thread
from distdl_jupyter.views.wire import from_fields

#: Maximum number of threads of a rank, besides the main one, in the text.
_THREADS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads are at the same line; ``frames`` newest first, ``at`` describes the location.

    ``threads`` are the other threads of the first rank; ``processes`` describe all ranks of the group, without threads.
    """

    ranks: tuple[int, ...]
    at: str
    differs: bool
    frames: tuple[Frame, ...]
    threads: tuple[Thread, ...]
    processes: tuple[RankStacks, ...]


@dataclass(frozen=True, slots=True)
class JobStacks:
    """The stacks of all ranks at one moment: the groups with the fewest ranks first.

    ``why`` is as in ``core.stacks.StackSnapshot``, ``sentence`` is a clause that locates the ranks. ``missing`` has the
    reason of each rank that sent none, ``explanation`` why the ranks wait and what to do, "" if it is unknown.
    """

    number: int
    t: float
    why: str
    sentence: str
    groups: tuple[StackGroup, ...]
    missing: dict[int, str]
    explanation: str
    collectives: tuple[Collective, ...]


def stacks(dump: StackSnapshot) -> JobStacks:
    """Return the stacks for a page, the ranks that differ from the others first."""
    groups = tuple(_group(dump, group) for group in dump.groups())
    return from_fields(JobStacks, dump, groups=groups)


def _group(dump: StackSnapshot, group: RankGroup) -> StackGroup:
    members = [dump.ranks[rank] for rank in group.ranks]
    return StackGroup(
        ranks=group.ranks,
        at=group.position,
        differs=set(group.ranks) <= set(dump.outliers),
        frames=_job_frames(group.thread) or group.thread.frames,
        threads=tuple(replace(thread, frames=_job_frames(thread) or thread.frames) for thread in members[0].others),
        processes=tuple(replace(member, threads=(), text="") for member in members),
    )


def _job_frames(thread: Thread) -> tuple[Frame, ...]:
    """Return the frames of a thread, newest first, without the worker's frames below the user's code."""
    end = len(thread.frames)
    while end and thread.frames[end - 1].kind == "worker":
        end -= 1
    return thread.frames[:end]


class StacksDisplay(table.Display, StackSnapshot):
    """Stacks for notebooks and terminals."""

    def _parts(self) -> list[str | table.Rows]:
        parts: list[str | table.Rows] = [*_heading(self)]
        if self.collectives:
            parts += ["", collectives.build_table(self.collectives)]
        for group in self.groups():
            parts += ["", table.CodeBlock("\n".join([_title(self, group), *_group_lines(self, group)]))]
        return parts


def _heading(dump: StackSnapshot) -> list[str]:
    rank_count = len(dump.ranks) + len(dump.missing)
    why = "" if dump.why == "request" else f" ({dump.why})"
    lines = [f"Stacks of {plural(rank_count, 'rank')} at {clock(dump.t)}{why}"]
    if dump.sentence:
        lines.append(f"{dump.sentence[0].upper()}{dump.sentence[1:]}.")
    if dump.explanation:
        lines.append(dump.explanation)
    return lines + [f"{who.capitalize()} sent no stacks: {why}" for who, why in by_reason(dump.missing)]


def by_reason(missing: dict[int, str]) -> list[tuple[str, str]]:
    """Return each reason with its ranks: ("ranks 0 and 1", reason)."""
    groups: dict[str, list[int]] = {}
    for rank, why in sorted(missing.items()):
        groups.setdefault(why, []).append(rank)
    return [(ranks(members), why) for why, members in groups.items()]


def _title(dump: StackSnapshot, group: RankGroup) -> str:
    members = [dump.ranks[rank] for rank in group.ranks]
    step = members[0].step
    silent = min((member.silent for member in members if member.silent is not None), default=None)
    parts = [*dict.fromkeys(member.state for member in members if member.state)]
    parts += [] if step is None else [f"step {count(step)}"]
    parts += [] if silent is None else [f"no progress for {duration(silent)}"]
    return f"{ranks(group.ranks).capitalize()}: {', '.join(parts)}".rstrip(": ")


def _group_lines(dump: StackSnapshot, group: RankGroup) -> Iterator[str]:
    yield from _call_lines(group.thread)
    threads = dump.ranks[group.ranks[0]].others
    displayed = [thread for thread in threads if thread.user_frame is not None][:_THREADS_SHOWN]
    for thread in displayed:
        yield f"another thread{f' ({thread.name})' if thread.name else ''}:"
        yield from (f"  {line}" for line in _call_lines(thread))
    if rest := len(threads) - len(displayed):
        yield f"and {plural(rest, 'thread')} of libraries"


def _call_lines(thread: Thread) -> Iterator[str]:
    frames = _job_frames(thread)
    if not frames:
        yield "code outside the job"
    for is_user_code, run in itertools.groupby(frames, lambda frame: frame.is_user_code):
        if is_user_code:
            for frame in run:
                yield f"{frame.location}, in {frame.function}"
                if frame.source:
                    yield f"    {frame.source}"
        else:
            newest, *callers = run
            more = f" and {plural(len(callers), 'call')} below" if callers else ""
            yield f"· {newest.location}, in {newest.function}{more}"

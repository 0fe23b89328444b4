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
_MAX_THREADS = 6


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


def make_job_stacks(dump: StackSnapshot) -> JobStacks:
    """Return the stacks for a page, the ranks that differ from the others first."""
    groups = tuple(_make_group(dump, group) for group in dump.groups())
    return from_fields(JobStacks, dump, groups=groups)


def _make_group(dump: StackSnapshot, group: RankGroup) -> StackGroup:
    members = [dump.ranks[rank] for rank in group.ranks]
    return StackGroup(
        ranks=group.ranks,
        at=group.position,
        differs=set(group.ranks) <= set(dump.outliers),
        frames=_get_job_frames(group.thread) or group.thread.frames,
        threads=tuple(replace(thread, frames=_get_job_frames(thread) or thread.frames) for thread in members[0].others),
        processes=tuple(replace(member, threads=(), text="") for member in members),
    )


def _get_job_frames(thread: Thread) -> tuple[Frame, ...]:
    """Return the frames of a thread, newest first, without the worker's frames below the user's code."""
    end = len(thread.frames)
    while end and thread.frames[end - 1].kind == "worker":
        end -= 1
    return thread.frames[:end]


class StacksDisplay(table.Display, StackSnapshot):
    """Stacks for notebooks and terminals."""

    def _parts(self) -> list[str | table.Rows]:
        parts: list[str | table.Rows] = [*_format_heading(self)]
        if self.collectives:
            parts += ["", collectives.build_table(self.collectives)]
        for group in self.groups():
            parts += ["", table.CodeBlock("\n".join([_format_title(self, group), *_format_group(self, group)]))]
        return parts


def _format_heading(dump: StackSnapshot) -> list[str]:
    rank_count = len(dump.ranks) + len(dump.missing)
    reason = "" if dump.why == "request" else f" ({dump.why})"
    lines = [f"Stacks of {plural(rank_count, 'rank')} at {clock(dump.t)}{reason}"]
    if dump.sentence:
        lines.append(f"{dump.sentence[0].upper()}{dump.sentence[1:]}.")
    if dump.explanation:
        lines.append(dump.explanation)
    return lines + [f"{names.capitalize()} sent no stacks: {reason}" for names, reason in group_by_reason(dump.missing)]


def group_by_reason(missing: dict[int, str]) -> list[tuple[str, str]]:
    """Return each reason with its ranks: ("ranks 0 and 1", reason)."""
    groups: dict[str, list[int]] = {}
    for rank, reason in sorted(missing.items()):
        groups.setdefault(reason, []).append(rank)
    return [(ranks(members), reason) for reason, members in groups.items()]


def _format_title(dump: StackSnapshot, group: RankGroup) -> str:
    members = [dump.ranks[rank] for rank in group.ranks]
    step = members[0].step
    silence = min((member.silent for member in members if member.silent is not None), default=None)
    parts = [*dict.fromkeys(member.state for member in members if member.state)]
    parts += [] if step is None else [f"step {count(step)}"]
    parts += [] if silence is None else [f"no progress for {duration(silence)}"]
    return f"{ranks(group.ranks).capitalize()}: {', '.join(parts)}".rstrip(": ")


def _format_group(dump: StackSnapshot, group: RankGroup) -> Iterator[str]:
    yield from _format_calls(group.thread)
    threads = dump.ranks[group.ranks[0]].others
    displayed_threads = [thread for thread in threads if thread.user_frame is not None][:_MAX_THREADS]
    for thread in displayed_threads:
        yield f"another thread{f' ({thread.name})' if thread.name else ''}:"
        yield from (f"  {line}" for line in _format_calls(thread))
    if remaining := len(threads) - len(displayed_threads):
        yield f"and {plural(remaining, 'thread')} of libraries"


def _format_calls(thread: Thread) -> Iterator[str]:
    frames = _get_job_frames(thread)
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
            suffix = f" and {plural(len(callers), 'call')} below" if callers else ""
            yield f"· {newest.location}, in {newest.function}{suffix}"

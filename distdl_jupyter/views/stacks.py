"""The stack traces of all ranks, as data for pages and as text.

Ranks at the same line share a block; ranks that differ from the others come first. The newest call is at the top. The
text shows the source line of each call in the user's code, and consecutive library calls on one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdl_jupyter.core import collectives, humanize
from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.humanize import clock, count, duration, plural, ranks
from distdl_jupyter.core.stacks import Frame, RankGroup, RankStacks, StackSnapshot, Thread
from distdl_jupyter.views.wire import from_fields

#: Maximum number of threads of a rank in the text, in addition to the main thread.
_MAX_THREADS = 6


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads are at the same line, which ``at`` describes; ``frames`` starts with the newest call.

    ``threads`` are the other threads of the first rank; ``processes`` are all ranks of the group, without threads.
    """

    ranks: tuple[int, ...]
    at: str
    differs: bool
    frames: tuple[Frame, ...]
    threads: tuple[Thread, ...]
    processes: tuple[RankStacks, ...]


@dataclass(frozen=True, slots=True)
class JobStacks:
    """The stack traces of all ranks at one time, the groups with the fewest ranks first.

    ``why`` is as in ``core.stacks.StackSnapshot``, ``sentence`` says where the ranks are. ``missing`` is the reason
    for each rank that sent none. ``explanation`` is why the ranks wait and what to do, or "" if it is unknown.
    """

    number: int
    t: float
    why: str
    sentence: str
    groups: tuple[StackGroup, ...]
    missing: dict[int, str]
    explanation: str
    collectives: tuple[Collective, ...]


def make_job_stacks(snapshot: StackSnapshot) -> JobStacks:
    """Return the stack traces for a page, the ranks that differ from the others first."""
    groups = tuple(_make_group(snapshot, group) for group in snapshot.groups())
    return from_fields(JobStacks, snapshot, groups=groups)


def _make_group(snapshot: StackSnapshot, group: RankGroup) -> StackGroup:
    members = [snapshot.ranks[rank] for rank in group.ranks]
    return StackGroup(
        ranks=group.ranks,
        at=group.position,
        differs=set(group.ranks) <= set(snapshot.outliers),
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


class StacksDisplay(humanize.Display, StackSnapshot):
    """Stack traces for notebooks and terminals."""

    def _parts(self) -> list[str | humanize.Rows]:
        parts: list[str | humanize.Rows] = [*_format_heading(self)]
        if self.collectives:
            parts += ["", collectives.build_table(self.collectives)]
        for group in self.groups():
            parts += ["", humanize.CodeBlock("\n".join([_format_title(self, group), *_format_group(self, group)]))]
        return parts


def _format_heading(snapshot: StackSnapshot) -> list[str]:
    rank_count = len(snapshot.ranks) + len(snapshot.missing)
    reason = "" if snapshot.why == "request" else f" ({snapshot.why})"
    lines = [f"Stacks of {plural(rank_count, 'rank')} at {clock(snapshot.t)}{reason}"]
    if snapshot.sentence:
        lines.append(f"{snapshot.sentence[0].upper()}{snapshot.sentence[1:]}.")
    if snapshot.explanation:
        lines.append(snapshot.explanation)
    missing = group_by_reason(snapshot.missing)
    return lines + [f"{names.capitalize()} sent no stacks: {reason}" for names, reason in missing]


def group_by_reason(missing: dict[int, str]) -> list[tuple[str, str]]:
    """Return the ranks for each reason: ("ranks 0 and 1", reason)."""
    groups: dict[str, list[int]] = {}
    for rank, reason in sorted(missing.items()):
        groups.setdefault(reason, []).append(rank)
    return [(ranks(members), reason) for reason, members in groups.items()]


def _format_title(snapshot: StackSnapshot, group: RankGroup) -> str:
    members = [snapshot.ranks[rank] for rank in group.ranks]
    step = members[0].step
    silence = min((member.silent for member in members if member.silent is not None), default=None)
    parts = [*dict.fromkeys(member.state for member in members if member.state)]
    parts += [] if step is None else [f"step {count(step)}"]
    parts += [] if silence is None else [f"no progress for {duration(silence)}"]
    return f"{ranks(group.ranks).capitalize()}: {', '.join(parts)}".rstrip(": ")


def _format_group(snapshot: StackSnapshot, group: RankGroup) -> Iterator[str]:
    yield from _format_calls(group.thread)
    threads = snapshot.ranks[group.ranks[0]].others
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

"""The stacks of all ranks as pages show them: side by side, ranks that stand at the same place in one column. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

from distdl_jupyter.presentation.plain import finite
from distdl_jupyter.presentation.schema import (
    StackFrame,
    StackGroup,
    StackMissing,
    StackPlace,
    Stacks,
    StacksWhy,
    StackThread,
)

if TYPE_CHECKING:
    from distdl_jupyter.core.stacks import Group, RankStacks, Taken
    from distdl_jupyter.core.threads import Frame, Thread

#: The execution count in the label of a cell: "In [7]".
_COUNT = re.compile(r"\[(\d+)\]")
#: Threads and frames beyond these tell nothing more: a recursion, a pool.
_THREADS, _FRAMES = 40, 60


def stacks(taken: Taken) -> Stacks:
    """Return what was taken, the ranks that differ from the others first."""
    return Stacks(
        number=taken.number,
        t=taken.t,
        why=why(taken.why),
        says=taken.sentence,
        groups=tuple(_group(taken, group) for group in taken.groups()),
        missing=tuple(StackMissing(rank, reason) for rank, reason in sorted(taken.missing.items())),
    )


def why(word: str) -> StacksWhy:
    """Return why stacks were taken; a word of a later version counts as asked."""
    return word if word in get_args(StacksWhy) else "asked"  # type: ignore[return-value]  # one of them


def _group(taken: Taken, group: Group) -> StackGroup:
    differ = set(taken.differ)
    ranks = [taken.ranks[rank] for rank in group.ranks]
    return StackGroup(
        ranks=group.ranks,
        at=group.says,
        differs=all(rank in differ for rank in group.ranks),
        frames=frames(group.thread),
        threads=tuple(StackThread(one.name, frames(one)) for one in ranks[0].others[:_THREADS]),
        places=tuple(_place(one) for one in ranks),
    )


def frames(thread: Thread) -> tuple[StackFrame, ...]:
    """Return the frames of a thread, newest first, without the worker's that led to the user's code."""
    found = list(thread.frames)
    while found and found[-1].kind == "worker":
        found.pop()
    return tuple(_frame(one) for one in (found or thread.frames)[:_FRAMES])


def _frame(frame: Frame) -> StackFrame:
    count = _COUNT.search(frame.label) if frame.kind == "cell" else None
    cell = int(count[1]) if count else None
    return StackFrame(frame.file, frame.line, frame.function, frame.kind, frame.label, cell, frame.source)


def _place(one: RankStacks) -> StackPlace:
    return StackPlace(one.rank, one.host, one.pid, one.state, finite(one.step), finite(one.silent))

"""Compares the last collective operations of ranks, to find out why they wait for each other. Pure functions.

For each of its process groups, a rank reports the oldest unfinished operation, or the last one if all have finished
(``worker.hooks.distributed``). An operation of a group has the same number on all ranks. So a rank with a lower number
has not called it yet, and two different operations with the same number never complete.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from distdl_jupyter.core.humanize import count
from distdl_jupyter.core.humanize import ranks as format_ranks
from distdl_jupyter.worker.hooks.frameworks import JOIN_CALLS

_BUFFERS_CALLER = "DDP's broadcast of buffers"
_BACKWARD_CALLER = "the backward pass"
#: Functions of torch that call operations, and their descriptions.
_CALLERS = {"_sync_buffers": _BUFFERS_CALLER, "_engine_run_backward": _BACKWARD_CALLER}
_BUFFERS_REMEDY = (
    "A DDP model synchronizes its buffers on all ranks in each forward pass. Where only some ranks run it, such as in "
    "validation on rank 0, call model.eval() and use model.module."
)
_SAME_CALLS_REMEDY = (
    "All ranks must make the same collective calls in the same order, so move the call out of code for some ranks."
)
_SHAPES_REMEDY = (
    "All ranks must pass tensors of the same shape and type: check for uneven data (drop_last=True) and for sizes that "
    "depend on the rank."
)
UNEVEN_REMEDY = (
    "Give every rank the same number of batches (drop_last=True, a DistributedSampler), or let finished ranks wait for "
    f"the others: {JOIN_CALLS}."
)
#: Operations that need tensors of the same sizes on all ranks.
_SAME_SIZE_OPERATIONS = ("all_reduce", "allreduce", "broadcast", "all_gather", "reduce")
#: Maximum number of late ranks whose position is in the text of a finding.
_MAX_POSITIONS = 4


class Operation(msgspec.Struct, frozen=True):
    """An operation as a rank reports it (``worker.hooks.distributed``); ``last`` is the newest number in its group."""

    operation: str
    group: str
    number: int
    last: int
    sizes: tuple[tuple[int, ...], ...]
    dtype: str
    waiting: bool
    #: File, line and function, newest first.
    frames: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """Ranks with the same last operation, or the same oldest unfinished one.

    ``operation`` is "" if none is known. ``caller`` is the library code that called it ("the backward pass"), ``line``
    the user's line ("In [7], line 12"). ``number`` counts the operations of ``group``, ``sizes`` are those of tensors
    ("[3, 4]"). ``state`` is waiting, done, or the state of ranks that have ended ("finished", "failed").
    """

    ranks: tuple[int, ...]
    operation: str = ""
    caller: str = ""
    group: str = ""
    number: int | None = None
    sizes: str = ""
    dtype: str = ""
    state: str = ""
    line: str = ""

    @property
    def title(self) -> str:
        """The name for display: "all_reduce", "DDP's broadcast of buffers"."""
        if self.caller == _BUFFERS_CALLER:
            return self.caller
        return f"{self.operation} of {self.caller}" if self.caller else self.operation

    @property
    def description(self) -> str:
        """The name for display with number and line: "all_reduce, operation 5 (In [7], line 12)"."""
        return f"{self.title}, operation {self.full_number}{f' ({self.line})' if self.line else ''}"

    @property
    def full_number(self) -> str:
        """The number with the group: "5", "5 of group 2"."""
        number = "" if self.number is None else count(self.number)
        return number if self.group in ("", "default") else f"{number} of group {self.group}"


def build_table(collectives: Sequence[Collective]) -> list[tuple[str, ...]]:
    """Return a header row and the row of each operation."""
    rows: list[tuple[str, ...]] = [("Ranks", "Last operation", "Number", "Sizes", "State", "Line")]
    for call in collectives:
        title, tensors = call.title or "no collective operation", f"{call.sizes} {call.dtype}".strip()
        rows.append((format_ranks(call.ranks), title, call.full_number, tensors, call.state, call.line))
    return rows


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """Why ranks wait for each other, with the remedy, a stable code and the ranks that it concerns."""

    text: str
    remedy: str
    code: str
    ranks: tuple[int, ...] = ()


def parse_report(report: object) -> tuple[list[Operation], Mapping[str, Any]]:
    """Return the valid operations in a rank's report, and its ``about`` entry, or {} if it is missing."""
    data = report if isinstance(report, dict) else {}
    entries, rank_info = data.get("operations"), data.get("about")
    operations = []
    for operation in entries if isinstance(entries, list) else ():
        with contextlib.suppress(msgspec.ValidationError):
            operations.append(msgspec.convert(operation, Operation))
    return operations, rank_info if isinstance(rank_info, dict) else {}


def group_ranks(
    reports: Mapping[int, Sequence[Operation]], states: Mapping[int, str], lines: Mapping[int, str]
) -> tuple[Collective, ...]:
    """Return the last operations in rank order, one for all ranks in the same state; () if no operation is known.

    ``states`` maps each rank to its state if it has ended, else to "". ``lines`` are the lines that called them.
    """
    members: dict[Collective, list[int]] = {}
    for rank, state in sorted(states.items()):
        collective = Collective((), state=state)
        if report := reports.get(rank):
            newest = report[0]
            callers = (_CALLERS[name] for path, _, name in newest.frames if "/torch/" in path and name in _CALLERS)
            sizes = ", ".join(str(list(size)) for size in newest.sizes)
            dtype, line = newest.dtype if newest.sizes else "", lines.get(rank, "")
            status = state or ("waiting" if newest.waiting else "done")
            collective = Collective(
                (), newest.operation, next(callers, ""), newest.group, newest.number, sizes, dtype, status, line
            )
        members.setdefault(collective, []).append(rank)
    return tuple(replace(call, ranks=tuple(ranks)) for call, ranks in members.items()) if any(reports.values()) else ()


def explain(
    collectives: Sequence[Collective], reports: Mapping[int, Sequence[Operation]], lines: Mapping[int, str]
) -> CollectiveFinding | None:
    """Return why the ranks wait for each other forever, or None if the operations do not show it.

    ``lines`` maps a rank to the line that it executes ("In [7], line 12"), if it is known.
    """
    # Start with the oldest operation in which ranks are blocked.
    waiting = [call for call in collectives if call.state in ("waiting", "failed") and call.number is not None]
    waiting.sort(key=lambda call: (call.number or 0, call.ranks))
    for call, other in itertools.product(waiting, collectives):
        is_same_number = call.ranks != other.ranks and (call.group, call.number) == (other.group, other.number)
        if is_same_number and (finding := _find_mismatch(*sorted((call, other), key=lambda row: row.ranks))):
            return finding
    for call in waiting:
        if late := [other for other in collectives if other.ranks != call.ranks and _is_late(other, call, reports)]:
            return _explain_missed_call(call, late, lines)
    return None


def _find_mismatch(first: Collective, second: Collective) -> CollectiveFinding | None:
    """Return how two operations of one group with the same number differ, or None if they match."""
    ranks = (*first.ranks, *second.ranks)
    if (first.operation, first.caller) != (second.operation, second.caller):
        text = (
            f"The ranks made different calls: {_describe_wait(first)}, {format_ranks(second.ranks)} in "
            f"{second.description}."
        )
        if ddp_call := next((call for call in (first, second) if call.caller == _BUFFERS_CALLER), None):
            return CollectiveFinding(text, _BUFFERS_REMEDY, "ddp-buffers", ddp_call.ranks)
        return CollectiveFinding(text, _SAME_CALLS_REMEDY, "collective-order", ranks)
    if first.operation not in _SAME_SIZE_OPERATIONS or (first.sizes, first.dtype) == (second.sizes, second.dtype):
        return None
    tensors = (
        f"{call.sizes} {call.dtype} on {format_ranks(call.ranks)}{f' ({call.line})' if call.line else ''}"
        for call in (first, second)
    )
    text = f"The ranks passed different tensors to {first.title}, operation {first.number}: {', '.join(tensors)}."
    return CollectiveFinding(text, _SHAPES_REMEDY, "collective-mismatch", ranks)


def _is_late(call: Collective, awaited: Collective, reports: Mapping[int, Sequence[Operation]]) -> bool:
    """Return whether the ranks of ``call`` have not called the operation in which other ranks wait."""
    if call.group == awaited.group and call.state == "waiting" and (call.number or 0) >= (awaited.number or 0):
        return False
    numbers = [operation.last for operation in reports.get(call.ranks[0]) or () if operation.group == awaited.group]
    return max(numbers, default=0) < (awaited.number or 0)


def _explain_missed_call(
    awaited: Collective, late: Sequence[Collective], lines: Mapping[int, str]
) -> CollectiveFinding:
    missing = tuple(sorted(rank for call in late for rank in call.ranks))
    verb = "has" if len(missing) == 1 else "have"
    texts = [f"{_describe_wait(awaited)}, which {format_ranks(missing)} {verb} not called."]
    for call in late[:_MAX_POSITIONS]:
        ranks, line = format_ranks(call.ranks), next((lines[rank] for rank in call.ranks if lines.get(rank)), "")
        if call.state == "waiting":
            texts.append(f"{_describe_wait(call)}.")
        elif line:
            present, past = ("is", "was") if len(call.ranks) == 1 else ("are", "were")
            texts.append(f"{ranks} {past if awaited.state == 'failed' else present} in {line}.")
        elif call.state in ("finished", "failed"):
            texts.append(f"{ranks} had {call.state}.")
    text = " ".join(f"{part[0].upper()}{part[1:]}" for part in texts)
    if awaited.caller == _BUFFERS_CALLER:
        return CollectiveFinding(text, _BUFFERS_REMEDY, "ddp-buffers", missing)
    remedy = UNEVEN_REMEDY if awaited.caller == _BACKWARD_CALLER else _SAME_CALLS_REMEDY
    return CollectiveFinding(text, remedy, "collective-missed", missing)


def _describe_wait(call: Collective) -> str:
    verb = "waited" if call.state == "failed" else "waits" if len(call.ranks) == 1 else "wait"
    return f"{format_ranks(call.ranks)} {verb} in {call.description}"

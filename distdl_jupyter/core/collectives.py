"""Compare the last collective operations of the ranks to find out why they wait for each other.

For each of its process groups, a rank reports the oldest unfinished operation, or the last one if all have finished
(``worker.hooks.distributed``). An operation of a group has the same number on all ranks. So a rank with a lower number
has not called it yet, and two different operations with the same number never complete. Pure functions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from distdl_jupyter.core.humanize import count, plural
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.worker.hooks.frameworks import JOINS

#: A stack frame: file, line and function.
Call = tuple[str, int, str]
#: A function that returns the line of the user's code in a stack (newest frame first), or "".
Place = Callable[[Sequence[Call]], str]
#: Library code that calls operations: file, function and description. The first entry that matches a frame is used.
_CALLERS = (
    ("torch/nn/parallel/distributed.py", "_sync_buffers", "DDP's broadcast of buffers"),
    ("torch/nn/parallel/distributed.py", "_pre_forward", "DDP's start of the forward pass"),
    ("torch/nn/parallel/distributed.py", "__init__", "DDP's check of the model"),
    ("torch/autograd/graph.py", "_engine_run_backward", "the backward pass"),
)
_BUFFERS_CALLER = _CALLERS[0][2]
_BACKWARD_CALLER = _CALLERS[3][2]
_BUFFERS_REMEDY = (
    "A DDP model synchronizes its buffers on all ranks in each forward pass. Where only some ranks run it, such as in "
    "validation on rank 0, call model.eval() and use model.module."
)
_SAME_CALLS_REMEDY = (
    "All ranks must make the same collective calls in the same order: move the call out of code that only some ranks "
    "run."
)
_SHAPES_REMEDY = (
    "All ranks must pass tensors of the same shape and type: check for uneven data (drop_last=True) and for sizes that "
    "depend on the rank."
)
UNEVEN_REMEDY = (
    "Give every rank the same number of batches (drop_last=True, a DistributedSampler), or let finished ranks wait for "
    f"the others: {JOINS}."
)
#: Operations that need tensors of the same sizes on all ranks.
_SAME_SIZE_OPERATIONS = ("all_reduce", "allreduce", "broadcast", "all_gather", "reduce")
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
    #: Newest first.
    frames: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of the table: ranks with the same last collective. An unfinished operation takes precedence.

    ``operation`` is "" if none is known. ``caller`` describes the library code that called it ("the backward pass").
    ``number`` counts the operations of the process group ``group``. ``sizes`` are the tensor sizes ("[3, 4]").
    ``state`` is waiting, done, or the state of ranks that have ended ("finished", "failed"). ``line`` is the line of
    the user's code that called it ("In [7], line 12").
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
        """Return its display name: "all_reduce", "DDP's broadcast of buffers"."""
        if self.caller == _BUFFERS_CALLER:
            return self.caller
        return f"{self.operation} of {self.caller}" if self.caller else self.operation

    @property
    def at(self) -> str:
        """Return the line in parentheses: " (In [7], line 12)", or ""."""
        return f" ({self.line})" if self.line else ""

    @property
    def description(self) -> str:
        """Return its display name with number and line: "all_reduce, operation 5 (In [7], line 12)"."""
        group = "" if self.group == "default" else f" of group {self.group}"
        return f"{self.title}, operation {self.number}{group}{self.at}"

    @property
    def waits(self) -> str:
        """Return the verb for its ranks: "waits", "wait" or "waited"."""
        return "waited" if self.state == "failed" else "waits" if len(self.ranks) == 1 else "wait"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why ranks wait for each other, with the remedy, a stable code and the ranks that it concerns."""

    text: str
    remedy: str
    code: str
    ranks: tuple[int, ...] = ()


def read(report: object) -> tuple[list[Operation], Mapping[str, Any]]:
    """Return the valid operations in a rank's report, and its ``about`` entry ({} if missing)."""
    data = report if isinstance(report, dict) else {}
    entries, about = data.get("operations"), data.get("about")
    operations = []
    for operation in entries if isinstance(entries, list) else ():
        with contextlib.suppress(msgspec.ValidationError):
            operations.append(msgspec.convert(operation, Operation))
    return operations, about if isinstance(about, dict) else {}


def rows(
    reports: Mapping[int, Sequence[Operation]], states: Mapping[int, str], locators: Mapping[int, Place]
) -> tuple[Collective, ...]:
    """Return the table in rank order. Ranks in the same state share a row. () if no operation is known.

    ``states`` maps each rank to show to its state if it has ended, else to ""; ``locators`` has a function per rank.
    """
    row_ranks: dict[Collective, list[int]] = {}
    for rank, state in sorted(states.items()):
        row = Collective((), state=state)
        if report := reports.get(rank):
            newest = report[0]
            callers = (title for file, name, title in _CALLERS for path, _, function in newest.frames
                       if path.endswith(file) and function == name)  # fmt: skip
            row = Collective(
                ranks=(),
                operation=newest.operation,
                caller=next(callers, ""),
                group=newest.group,
                number=newest.number,
                sizes=", ".join(str(list(size)) for size in newest.sizes),
                dtype=newest.dtype if newest.sizes else "",
                state=state or ("waiting" if newest.waiting else "done"),
                line=locators[rank](newest.frames) if rank in locators else "",
            )
        row_ranks.setdefault(row, []).append(rank)
    return tuple(replace(row, ranks=tuple(ranks)) for row, ranks in row_ranks.items()) if any(reports.values()) else ()


def explain(
    table: Sequence[Collective],
    reports: Mapping[int, Sequence[Operation]],
    lines: Mapping[int, str],
) -> Finding | None:
    """Return why the ranks wait for each other forever, or None if the table does not show it.

    ``lines`` maps a rank to the line that it executes ("In [7], line 12"), if known.
    """
    waiting = [row for row in table if row.state in ("waiting", "failed") and row.number is not None]
    for row, other in itertools.product(waiting, table):
        if row.ranks == other.ranks or (row.group, row.number) != (other.group, other.number):
            continue
        pair = sorted((row, other), key=lambda collective: collective.ranks)
        if (row.operation, row.caller) != (other.operation, other.caller):
            return _explain_different_calls(*pair)
        if row.operation in _SAME_SIZE_OPERATIONS and (row.sizes, row.dtype) != (other.sizes, other.dtype):
            return _explain_different_tensors(*pair)
    # Start with the oldest operation in which ranks are blocked.
    for row in sorted(waiting, key=lambda row: (row.number or 0, row.ranks)):
        if late_rows := [other for other in table if other.ranks != row.ranks and _is_late(other, row, reports)]:
            return _explain_missed_call(row, late_rows, lines)
    return None


def _is_late(row: Collective, awaited: Collective, reports: Mapping[int, Sequence[Operation]]) -> bool:
    """Return whether the ranks of ``row`` have not called the operation in which other ranks wait."""
    if row.group == awaited.group and row.state == "waiting" and (row.number or 0) >= (awaited.number or 0):
        return False
    numbers = [operation.last for operation in reports.get(row.ranks[0]) or () if operation.group == awaited.group]
    return max(numbers, default=0) < (awaited.number or 0)


def _explain_different_calls(row: Collective, other: Collective) -> Finding:
    text = (
        f"The ranks made different calls: {ranks_in_words(row.ranks)} {row.waits} in {row.description}, "
        f"{ranks_in_words(other.ranks)} in {other.description}."
    )
    for call in (row, other):
        if call.caller == _BUFFERS_CALLER:
            return Finding(text, _BUFFERS_REMEDY, "ddp-buffers", call.ranks)
    return Finding(text, _SAME_CALLS_REMEDY, "collective-order", (*row.ranks, *other.ranks))


def _explain_different_tensors(row: Collective, other: Collective) -> Finding:
    tensors = ", ".join(f"{call.sizes} {call.dtype} on {ranks_in_words(call.ranks)}{call.at}" for call in (row, other))
    text = f"The ranks passed different tensors to {row.title}, operation {row.number}: {tensors}."
    return Finding(text, _SHAPES_REMEDY, "collective-mismatch", (*row.ranks, *other.ranks))


def _explain_missed_call(awaited: Collective, rows: Sequence[Collective], lines: Mapping[int, str]) -> Finding:
    missing = tuple(sorted(rank for row in rows for rank in row.ranks))
    verb = "has" if len(missing) == 1 else "have"
    waiting_ranks, late_ranks = ranks_in_words(awaited.ranks).capitalize(), ranks_in_words(missing)
    text = f"{waiting_ranks} {awaited.waits} in {awaited.description}, which {late_ranks} {verb} not called."
    parts = list(filter(None, (_describe_position(row, lines, has_failed=awaited.state == "failed") for row in rows)))
    text += "".join(f" {part}" for part in parts[:_MAX_POSITIONS])
    text += f" ({plural(len(parts) - _MAX_POSITIONS, 'more place')}.)" if len(parts) > _MAX_POSITIONS else ""
    if awaited.caller == _BUFFERS_CALLER:
        return Finding(text, _BUFFERS_REMEDY, "ddp-buffers", missing)
    is_uneven = awaited.caller == _BACKWARD_CALLER or awaited.caller.startswith("DDP")
    return Finding(text, UNEVEN_REMEDY if is_uneven else _SAME_CALLS_REMEDY, "collective-missed", missing)


def _describe_position(row: Collective, lines: Mapping[int, str], *, has_failed: bool) -> str:
    """Return the position of late ranks: "Rank 0 is in In [7], line 9; its last call was barrier, operation 4"."""
    is_single = len(row.ranks) == 1
    ranks = ranks_in_words(row.ranks).capitalize()
    last_call = f"; {'its' if is_single else 'their'} last call was {row.description}" if row.operation else ""
    line = next((lines[rank] for rank in row.ranks if lines.get(rank)), "")
    if row.state == "waiting":
        return f"{ranks} {row.waits} in {row.description}."
    if line:
        verb = ("was" if is_single else "were") if has_failed else "is" if is_single else "are"
        return f"{ranks} {verb} in {line}{last_call}."
    if row.state in ("finished", "failed"):
        return f"{ranks} had {row.state}{last_call}."
    return f"{ranks} called {row.description} last." if row.operation else ""


def cells(row: Collective) -> tuple[str, str, str, str, str, str]:
    """Return the texts of a row in the order of ``COLUMNS``."""
    number = "" if row.number is None else count(row.number)
    group = "" if row.group in ("", "default") else f" of group {row.group}"
    return (
        ranks_in_words(row.ranks),
        row.title or "no collective operation",
        f"{number}{group}",
        f"{row.sizes} {row.dtype}".strip(),
        row.state,
        row.line,
    )


def texts(table: Sequence[Collective]) -> list[tuple[str, ...]]:
    """Return a header row and the texts of all rows."""
    return [COLUMNS, *map(cells, table)]


COLUMNS = ("Ranks", "Last operation", "Number", "Sizes", "State", "Line")

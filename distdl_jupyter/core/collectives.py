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

from distdl_jupyter.core.humanize import count
from distdl_jupyter.core.humanize import ranks as format_ranks
from distdl_jupyter.worker.hooks.frameworks import JOIN_CALLS

#: A stack frame: file, line and function.
Call = tuple[str, int, str]
#: A function that returns the location of the user's code in a stack (newest frame first), or "".
Locator = Callable[[Sequence[Call]], str]
_BUFFERS_CALLER, _BACKWARD_CALLER = "DDP's broadcast of buffers", "the backward pass"
#: Library code that calls operations: file, function and description. The first entry that matches a frame is used.
_CALLERS = (
    ("torch/nn/parallel/distributed.py", "_sync_buffers", _BUFFERS_CALLER),
    ("torch/nn/parallel/distributed.py", "_pre_forward", "DDP's start of the forward pass"),
    ("torch/nn/parallel/distributed.py", "__init__", "DDP's check of the model"),
    ("torch/autograd/graph.py", "_engine_run_backward", _BACKWARD_CALLER),
)
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
    f"the others: {JOIN_CALLS}."
)
#: Operations that need tensors of the same sizes on all ranks.
_SAME_SIZE_OPERATIONS = ("all_reduce", "allreduce", "broadcast", "all_gather", "reduce")
_MAX_POSITIONS = 4
#: The titles of the columns of ``build_table``.
COLUMNS = ("Ranks", "Last operation", "Number", "Sizes", "State", "Line")


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
    """Ranks with the same last collective. An unfinished operation takes precedence.

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
    def description(self) -> str:
        """Return its display name with number and line: "all_reduce, operation 5 (In [7], line 12)"."""
        line = f" ({self.line})" if self.line else ""
        return f"{self.title}, operation {self.number}{self._group_suffix}{line}"

    @property
    def _group_suffix(self) -> str:
        return "" if self.group in ("", "default") else f" of group {self.group}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Return its row in a table, in the order of ``COLUMNS``."""
        number = "" if self.number is None else count(self.number)
        tensors = f"{self.sizes} {self.dtype}".strip()
        title = self.title or "no collective operation"
        return format_ranks(self.ranks), title, f"{number}{self._group_suffix}", tensors, self.state, self.line


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """Why ranks wait for each other, with the remedy, a stable code and the ranks that it concerns."""

    text: str
    remedy: str
    code: str
    ranks: tuple[int, ...] = ()


def parse_report(report: object) -> tuple[list[Operation], Mapping[str, Any]]:
    """Return the valid operations in a rank's report, and its ``about`` entry ({} if missing)."""
    data = report if isinstance(report, dict) else {}
    entries, about = data.get("operations"), data.get("about")
    operations = []
    for operation in entries if isinstance(entries, list) else ():
        with contextlib.suppress(msgspec.ValidationError):
            operations.append(msgspec.convert(operation, Operation))
    return operations, about if isinstance(about, dict) else {}


def group_ranks(
    reports: Mapping[int, Sequence[Operation]], states: Mapping[int, str], locators: Mapping[int, Locator]
) -> tuple[Collective, ...]:
    """Return the last operations in rank order, one for all ranks in the same state. () if no operation is known.

    ``states`` maps each rank to its state if it has ended, else to ""; ``locators`` has a function per rank.
    """
    members: dict[Collective, list[int]] = {}
    for rank, state in sorted(states.items()):
        collective = Collective((), state=state)
        if report := reports.get(rank):
            newest = report[0]
            callers = (title for file, name, title in _CALLERS for path, _, function in newest.frames
                       if path.endswith(file) and function == name)  # fmt: skip
            collective = Collective(
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
        members.setdefault(collective, []).append(rank)
    if not any(reports.values()):
        return ()
    return tuple(replace(collective, ranks=tuple(ranks)) for collective, ranks in members.items())


def explain(
    collectives: Sequence[Collective], reports: Mapping[int, Sequence[Operation]], lines: Mapping[int, str]
) -> CollectiveFinding | None:
    """Return why the ranks wait for each other forever, or None if the operations do not show it.

    ``lines`` maps a rank to the line that it executes ("In [7], line 12"), if known.
    """
    waiting = [call for call in collectives if call.state in ("waiting", "failed") and call.number is not None]
    for call, other in itertools.product(waiting, collectives):
        if call.ranks == other.ranks or (call.group, call.number) != (other.group, other.number):
            continue
        first, second = sorted((call, other), key=lambda collective: collective.ranks)
        if (call.operation, call.caller) != (other.operation, other.caller):
            text = (
                f"The ranks made different calls: {format_ranks(first.ranks)} {_get_wait_verb(first)} in "
                f"{first.description}, {format_ranks(second.ranks)} in {second.description}."
            )
            for ddp_call in (first, second):
                if ddp_call.caller == _BUFFERS_CALLER:
                    return CollectiveFinding(text, _BUFFERS_REMEDY, "ddp-buffers", ddp_call.ranks)
            return CollectiveFinding(text, _SAME_CALLS_REMEDY, "collective-order", (*first.ranks, *second.ranks))
        if call.operation in _SAME_SIZE_OPERATIONS and (call.sizes, call.dtype) != (other.sizes, other.dtype):
            tensors = ", ".join(
                f"{call.sizes} {call.dtype} on {format_ranks(call.ranks)}{f' ({call.line})' if call.line else ''}"
                for call in (first, second)
            )
            text = f"The ranks passed different tensors to {first.title}, operation {first.number}: {tensors}."
            return CollectiveFinding(text, _SHAPES_REMEDY, "collective-mismatch", (*first.ranks, *second.ranks))
    # Start with the oldest operation in which ranks are blocked.
    for call in sorted(waiting, key=lambda call: (call.number or 0, call.ranks)):
        if late := [other for other in collectives if other.ranks != call.ranks and _is_late(other, call, reports)]:
            return _explain_missed_call(call, late, lines)
    return None


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
    text = (
        f"{format_ranks(awaited.ranks).capitalize()} {_get_wait_verb(awaited)} in {awaited.description}, which "
        f"{format_ranks(missing)} {'has' if len(missing) == 1 else 'have'} not called."
    )
    positions = list(filter(None, (_describe_position(call, lines, awaited.state == "failed") for call in late)))
    text = " ".join([text, *positions[:_MAX_POSITIONS]])
    if len(positions) > _MAX_POSITIONS:
        text += f" {count(len(positions) - _MAX_POSITIONS)} more positions are in the stack traces."
    if awaited.caller == _BUFFERS_CALLER:
        return CollectiveFinding(text, _BUFFERS_REMEDY, "ddp-buffers", missing)
    is_uneven = awaited.caller == _BACKWARD_CALLER or awaited.caller.startswith("DDP")
    return CollectiveFinding(text, UNEVEN_REMEDY if is_uneven else _SAME_CALLS_REMEDY, "collective-missed", missing)


def _describe_position(call: Collective, lines: Mapping[int, str], has_failed: bool) -> str:  # noqa: FBT001
    """Return the position of late ranks: "Rank 0 is in In [7], line 9; its last call was barrier, operation 4"."""
    ranks, is_single = format_ranks(call.ranks).capitalize(), len(call.ranks) == 1
    last_call = f"; {'its' if is_single else 'their'} last call was {call.description}" if call.operation else ""
    line = next((lines[rank] for rank in call.ranks if lines.get(rank)), "")
    if call.state == "waiting":
        return f"{ranks} {_get_wait_verb(call)} in {call.description}."
    if line:
        present, past = ("is", "was") if is_single else ("are", "were")
        return f"{ranks} {past if has_failed else present} in {line}{last_call}."
    if call.state in ("finished", "failed"):
        return f"{ranks} had {call.state}{last_call}."
    return f"The last call of {format_ranks(call.ranks)} was {call.description}." if call.operation else ""


def _get_wait_verb(call: Collective) -> str:
    return "waited" if call.state == "failed" else "waits" if len(call.ranks) == 1 else "wait"


def build_table(collectives: Sequence[Collective]) -> list[tuple[str, ...]]:
    """Return a header row and the row of each operation."""
    return [COLUMNS, *(collective.cells for collective in collectives)]

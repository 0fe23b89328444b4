"""The last collective operations of this process, from torch's flight recorder.

torch 2.13 keeps them for Gloo and NCCL without being asked to, so nothing is hooked and a step costs nothing more. This
is the only module that uses the private functions by which torch hands them out; a torch without them has none.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import execute

#: Process groups of a rank that are reported, and calls above one operation.
_GROUPS, _FRAMES = 8, 24
#: What torch is to hand out: collective operations, their frames, finished ones too.
_WHAT = (True, True, False)


def last_operations() -> list[dict[str, Any]]:
    """Return for each process group its oldest unfinished operation, or else its last one; the newest comes first.

    ``{"group", "operation", "number", "sizes", "dtype", "waiting", "last" (the number of the group's last operation),
    "frames" ([file, line, function], newest first)}``. Without torch, a group or a recorder the list is empty.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return []
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in _entries():
        with contextlib.suppress(LookupError, TypeError, ValueError):
            operation = _operation(entry)
            groups.setdefault(operation["group"], []).append(operation)
    last = [_last(operations) for operations in groups.values()]
    last.sort(key=lambda operation: (operation["waiting"], operation["time"]), reverse=True)
    return last[:_GROUPS]


def _entries() -> list[dict[str, Any]]:
    """Return the records of Gloo and of NCCL, which torch keeps apart."""
    module = sys.modules.get("torch._C._distributed_c10d")
    found: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(module, name, None)
        if dump is not None:
            with contextlib.suppress(Exception), _inductor_left_out():  # a torch that was built otherwise
                found += pickle.loads(dump(*_WHAT)).get("entries") or []
    return found


@contextlib.contextmanager
def _inductor_left_out() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes seconds, only to learn that it has compiled nothing.

    To name frames torch asks ``hasattr(torch, "_inductor")``, and that attribute is a lazy import.
    """
    torch = vars(sys.modules["torch"])
    if "torch._inductor" in sys.modules or "_inductor" in torch:
        yield
        return
    torch["_inductor"] = stand_in = ModuleType("torch._inductor")
    try:
        yield
    finally:
        if torch.get("_inductor") is stand_in:
            del torch["_inductor"]


def _operation(entry: dict[str, Any]) -> dict[str, Any]:
    name, description = entry["process_group"]
    transport, _, operation = str(entry["profiling_name"]).rpartition(":")
    sizes = entry["input_sizes"] or entry["output_sizes"]
    return {
        "group": "default" if description == "default_pg" else str(name),
        "operation": operation,
        "transport": transport,
        "number": int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]),
        "sizes": [list(map(int, size)) for size in sizes][:8],
        "dtype": str(next(iter(entry["input_dtypes"] or entry["output_dtypes"]), "")).lower(),
        "waiting": not (entry["retired"] or entry["state"] == "completed"),
        "time": int(entry["time_created_ns"]),
        "frames": _frames(entry),
    }


def _frames(entry: dict[str, Any]) -> list[list[Any]]:
    """Return the calls that led to an operation, newest first, without those that start the user's code."""
    found = [[str(one["filename"]), int(one["line"]), str(one["name"])] for one in entry["frames"][:_FRAMES]]
    begin = next((index for index, frame in enumerate(found) if frame[0] == execute.__file__), len(found))
    return found[:begin]


def _last(operations: list[dict[str, Any]]) -> dict[str, Any]:
    operations.sort(key=lambda operation: operation["time"])
    chosen = next((one for one in operations if one["waiting"]), operations[-1])
    return {**chosen, "last": operations[-1]["number"]}

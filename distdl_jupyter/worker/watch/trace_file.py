"""The recorded steps of one rank as files: torch's Chrome trace, ``rank-N.json.gz``, and a summary, ``rank-N.json``.

The summary has, in microseconds since the first recorded step began::

    {"rank", "host", "pid", "first", "steps": [[begin, end]], "waits": [["data" | "wait", begin, end]],
     "operators": [[name, kind, calls, own, total]], "computing", "left_out", "gpu"}

``computing`` is for how long in the steps an operator computed, here or on a GPU, while no wait was measured. ``kind``
is compute, communication, gpu, or python for parts of a step that torch annotates. An event's own time is its duration
without those inside of it on the same thread. The trace is read in pieces, however large it is, and never held whole.
"""

from __future__ import annotations

import array
import gzip
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distdl_jupyter.worker.watch.profile import Recording

#: Events of a summary at most, the first ones: they take 300 MB of memory.
MOST_EVENTS = 300_000
#: Operators of a summary, those with the most time of their own.
_MOST_OPERATORS = 300
_PIECE = 1 << 20
_DURATIONS = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: Kinds of events that are work of their own.
_WORK = ("compute", "gpu")
_TALKS = ("gloo:", "horovod:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:", "xccl:",
          "_c10d_functional::")  # fmt: skip
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


Span = tuple[float, float]


class Event(NamedTuple):
    """An interval in microseconds. ``thread`` is a process and its thread, or a GPU and its stream."""

    ts: float
    duration: float
    thread: tuple[Any, Any]
    name: str
    category: str


def united(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in their order, those that touch each other as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def write(recording: Recording, folder: Path, rank: int, host: str) -> int:
    """Write both files of a recording that has stopped and return their bytes. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    raw = folder / f".rank-{rank}.raw.json"
    trace, about = folder / f"rank-{rank}.json.gz", folder / f"rank-{rank}.json"
    hidden = [raw, folder / f".{trace.name}", folder / f".{about.name}"]
    try:
        os.close(os.open(raw, _NEW_FILE, 0o600))
        recording.result.export_chrome_trace(str(raw))
        if not raw.stat().st_size:
            raise OSError(28, "No space left on device")
        hidden[2].write_text(json.dumps(_summary(recording, raw, rank, host)), encoding="utf-8")
        _compress(raw, hidden[1])
        hidden[1].replace(trace)
        hidden[2].replace(about)
    finally:
        for path in hidden:
            path.unlink(missing_ok=True)
    return trace.stat().st_size + about.stat().st_size


def _compress(raw: Path, path: Path) -> None:
    with (
        raw.open("rb") as source,
        open(os.open(path, _NEW_FILE, 0o600), "wb") as file,  # noqa: PTH123  a descriptor
        gzip.GzipFile("", "wb", 5, file, mtime=0) as out,
    ):
        shutil.copyfileobj(source, out)


# what the profiler wrote --------------------------------------------------------------------------


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, before them what the file says of itself (a dictionary without ``ph``)."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head, found, rest = file.read(_PIECE).partition('"traceEvents": [')
        if not found:
            raise ValueError("torch's profiler wrote no trace")
        yield json.loads(head.rstrip().rstrip(",") + "}")
        yield from _members(file, rest)


def _members(file: IO[str], rest: str) -> Iterator[dict[str, Any]]:
    """Yield the members of a list behind its bracket; one whose end is missing ends with the last whole one."""
    decode, at = json.JSONDecoder().raw_decode, 0
    while True:
        at = _next(rest, at)
        if at < len(rest) and rest[at] == "]":
            return
        try:
            event, at = decode(rest, at)
        except ValueError:
            piece = file.read(_PIECE)
            if not piece:
                return
            rest, at = rest[at:] + piece, 0
            continue
        yield event


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \n\r\t,":
        at += 1
    return at


def _events(raw: Path, recording: Recording) -> tuple[list[Event], int, list[Span]]:
    """Return the events in their order, how many events were left out, and when operators worked.

    The last is of all events, also of those that are left out.
    """
    until, total = _until(raw)
    shift = 0.0
    found: list[Event] = []
    work, many = list[Span](), MOST_EVENTS
    end = _microseconds(recording, recording.steps[-1][1])
    for event in read(raw):
        if "ph" not in event:
            shift = (int(event.get("baseTimeNanoseconds", 0)) - recording.zero) / 1000
        elif event["ph"] == "X":
            ts, duration = event["ts"] + shift, float(event["dur"])
            if _computes(event):
                work.append((ts, ts + duration))
                if len(work) > many:
                    work = united(work)
                    many = max(MOST_EVENTS, 2 * len(work))
            category = str(event.get("cat", ""))
            if event["ts"] <= until and ts <= end and category in _DURATIONS:
                thread = event["pid"], event["tid"]
                found.append(Event(ts, min(duration, end - ts), thread, str(event["name"]), category))
    if recording.horovod is not None:  # torch's profiler sees nothing of its collective operations
        found += (_wait(recording, begin, min(stop, recording.steps[-1][1])) for what, begin, stop in
                  recording.intervals if what == "wait" and begin < recording.steps[-1][1])  # fmt: skip
    found.sort(key=lambda one: (one.ts, -one.duration))
    return found, max(0, total - MOST_EVENTS), work


def _computes(event: dict[str, Any]) -> bool:
    """Return whether an event is an operator at work; calls of CUDA's runtime wait for those of the GPU."""
    category = str(event.get("cat", ""))
    return category in _DURATIONS and not category.startswith("cuda_") and kind(str(event["name"]), category) in _WORK


def _until(raw: Path) -> tuple[float, int]:
    """Return until when events are kept, and how many there are."""
    times = array.array("d", (event["ts"] for event in read(raw) if event.get("ph") == "X"))
    if len(times) <= MOST_EVENTS:
        return float("inf"), len(times)
    return sorted(times)[MOST_EVENTS - 1], len(times)


def _wait(recording: Recording, begin: int, end: int) -> Event:
    thread = os.getpid(), recording.native_thread
    return Event(_microseconds(recording, begin), (end - begin) / 1000, thread, "horovod:synchronize", "horovod")


# the summary ---------------------------------------------------------------------------------------


def _microseconds(recording: Recording, moment: int) -> float:
    return (moment + recording.epoch - recording.zero) / 1000


def _summary(recording: Recording, raw: Path, rank: int, host: str) -> dict[str, Any]:
    events, left_out, work = _events(raw, recording)

    def span(begin: int, end: int) -> list[float]:
        return [round(_microseconds(recording, moment), 3) for moment in (begin, end)]

    first, last = _microseconds(recording, recording.steps[0][0]), _microseconds(recording, recording.steps[-1][1])

    def length(spans: Iterable[Span]) -> float:
        return sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in united(spans))

    waits = [(_microseconds(recording, begin), _microseconds(recording, end)) for _, begin, end in recording.intervals]
    return {
        "rank": rank,
        "host": host,
        "pid": os.getpid(),
        "first": recording.first,
        "steps": [span(*one) for one in recording.steps],
        "waits": [[what, *span(begin, end)] for what, begin, end in recording.intervals],
        "operators": operators(events),
        "computing": round(length([*work, *waits]) - length(waits), 3),
        "left_out": left_out,
        "gpu": any(one.category in _ON_GPU for one in events),
    }


def operators(events: Iterable[Event]) -> list[list[Any]]:
    """Return the name, kind, calls, own and total microseconds of each operator, most own time first.

    The events are in their order: of two that begin together the longer one comes first.
    """
    found: dict[tuple[str, str], list[float]] = {}
    open_: dict[tuple[Any, Any], list[tuple[float, list[float]]]] = {}
    for one in events:
        if one.category.startswith("cuda_"):
            continue
        inside = open_.setdefault(one.thread, [])
        while inside and inside[-1][0] <= one.ts:
            inside.pop()
        row = found.setdefault((one.name, kind(one.name, one.category)), [0, 0.0, 0.0])
        if inside:
            inside[-1][1][1] -= min(one.duration, inside[-1][0] - one.ts)
        row[0] += 1
        row[1] += one.duration
        row[2] += one.duration
        inside.append((one.ts + one.duration, row))
    most = sorted(found.items(), key=lambda item: -item[1][1])[:_MOST_OPERATORS]
    return [[name, what, int(calls), round(own, 3), round(total, 3)] for (name, what), (calls, own, total) in most]


def kind(name: str, category: str) -> str:
    """Return what kind of work an event is."""
    if name.startswith(_TALKS):
        return "communication"
    if category in _ON_GPU:
        return "gpu"
    return "python" if category == "user_annotation" else "compute"


def horovod() -> Any:
    """Return ``horovod.torch`` where it runs, else None."""
    hvd = sys.modules.get("horovod.torch")
    return hvd if hvd is not None and hvd.is_initialized() else None

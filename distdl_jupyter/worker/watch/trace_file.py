"""The recorded steps of one rank as files: ``rank-N.jsonl.gz`` and a summary, ``rank-N.json``.

The first has one event of the Chrome trace format a line (Google, "Trace Event Format"), ordered by time: ``ts`` in
microseconds since the moment that the request names, by the clock of this rank's host; ``pid`` is the rank. Events of
torch's profiler are joined by those of the track ``steps``: each step with its waits for batches and for collective
operations. The summary has, in microseconds::

    {"rank", "host", "pid", "first", "steps": [[begin, end]], "waits": [["data" | "wait", begin, end]],
     "operators": [[name, kind, calls, own, total]], "computing", "events", "left_out", "gpu"}

``computing`` is for how long in the steps an operator computed, here or on a GPU, while no wait was measured. ``kind``
is compute, communication, gpu, or python for parts of a step that torch annotates. An event's own
time is its duration without those inside of it on the same thread. The profiler's file is read in pieces, however large
it is, and never held whole.
"""

from __future__ import annotations

import array
import contextlib
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.worker.watch.profile import Recording

#: Events of a trace at most, those of the first steps: some 20 MB compressed, and 300 MB of memory while it is written.
MOST_EVENTS = 300_000
#: Operators of a summary, those with the most time of their own.
_MOST_OPERATORS = 300
_PIECE = 1 << 20
#: Seconds in which Horovod's timeline has not grown when it is whole.
_QUIET = 0.2
#: The thread of the steps, above all others, and the first one of those that are streams of a GPU.
STEPS, _STREAMS = 0, 1_000_000_000
#: Process numbers from which on Horovod's own timeline has its groups.
HOROVOD = 1_000_000
#: What is taken over of an event of it.
_KEPT = ("ph", "name", "dur", "args", "s", "id")
_DURATIONS = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: Kinds of events that are work of their own.
_WORK = ("compute", "gpu")
_TALKS = ("gloo:", "horovod:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:", "xccl:",
          "_c10d_functional::")  # fmt: skip


Span = tuple[float, float]


def united(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in their order, those that touch each other as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


class Event:
    """An interval of the trace: microseconds since the request's moment, and what a line says of it."""

    __slots__ = ("category", "duration", "line", "name", "thread", "ts")

    def __init__(self, ts: float, duration: float, thread: int, name: str, category: str, line: str) -> None:
        self.ts, self.duration, self.thread, self.name, self.category = ts, duration, thread, name, category
        self.line = line


def write(recording: Recording, folder: Path, rank: int, host: str) -> int:
    """Write both files of a recording that has stopped and return their bytes. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    raw = folder / f".rank-{rank}.raw.json"
    trace, about = folder / f"rank-{rank}.jsonl.gz", folder / f"rank-{rank}.json"
    hidden = [raw, folder / f".{trace.name}", folder / f".{about.name}"]
    try:
        os.close(os.open(raw, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        recording.result.export_chrome_trace(str(raw))
        if not raw.stat().st_size:
            raise OSError(28, "No space left on device")
        events, names, left_out, work = _events(raw, recording, rank)
        raw.unlink()
        _write_trace(hidden[1], events, names, recording, rank, host)
        hidden[2].write_text(json.dumps(_summary(recording, events, rank, host, left_out, work)), encoding="utf-8")
        hidden[1].replace(trace)
        hidden[2].replace(about)
    finally:
        for path in hidden:
            path.unlink(missing_ok=True)
    return trace.stat().st_size + about.stat().st_size


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


def _events(raw: Path, recording: Recording, rank: int) -> tuple[list[Event], dict[int, str], int, list[Span]]:
    """Return the events in their order, names of threads, how many events were left out, and when operators worked.

    The last is of all events, also of those that are left out.
    """
    until, total = _until(raw)
    shift, names = 0.0, dict[int, str]()
    found: list[Event] = []
    work, many = list[Span](), MOST_EVENTS
    end = _microseconds(recording, recording.steps[-1][1])
    for event in read(raw):
        if "ph" not in event:
            shift = (int(event.get("baseTimeNanoseconds", 0)) - recording.zero) / 1000
        elif event["ph"] == "M":
            _name(event, names)
        elif event["ph"] in ("X", "s", "f", "t") and isinstance(event["tid"], int):
            if event["ph"] == "X" and _computes(event):
                work.append((event["ts"] + shift, event["ts"] + shift + float(event["dur"])))
                if len(work) > many:
                    work = united(work)
                    many = max(MOST_EVENTS, 2 * len(work))
            if event["ts"] > until:
                continue
            one = _event(event, shift, rank, end)
            if one is not None:
                found.append(one)
    if recording.horovod is not None:  # torch's profiler sees nothing of its collective operations
        found += (_wait(recording, begin, min(stop, recording.steps[-1][1]), rank) for what, begin, stop in
                  recording.intervals if what == "wait" and begin < recording.steps[-1][1])  # fmt: skip
    found.sort(key=lambda one: (one.ts, -one.duration))
    return found, names, max(0, total - MOST_EVENTS), work


def _computes(event: dict[str, Any]) -> bool:
    """Say whether an event is an operator at work; calls of CUDA's runtime wait for those of the GPU."""
    category = str(event.get("cat", ""))
    return category in _DURATIONS and not category.startswith("cuda_") and kind(str(event["name"]), category) in _WORK


def _until(raw: Path) -> tuple[float, int]:
    """Return until when events are kept, and how many there are."""
    times = array.array("d", (event["ts"] for event in read(raw) if event.get("ph") == "X"))
    if len(times) <= MOST_EVENTS:
        return float("inf"), len(times)
    return sorted(times)[MOST_EVENTS - 1], len(times)


def _name(event: dict[str, Any], names: dict[int, str]) -> None:
    if event["name"] == "thread_name" and isinstance(event["tid"], int):
        text = str(event["args"].get("name", ""))
        name = text[text.find("(") + 1 : -1] if text.endswith(")") and "(" in text else text
        thread = _thread(event)
        if names.get(thread, "python") == "python":  # of two names of a thread the one that says more
            names[thread] = name


def _thread(event: dict[str, Any]) -> int:
    """Return the number of a thread; streams of a GPU get numbers of their own."""
    on_gpu = event.get("cat") in _ON_GPU or (event["ph"] == "M" and "stream" in str(event["args"].get("name", "")))
    device = event["pid"] if isinstance(event["pid"], int) else 0
    thread = int(event["tid"])
    return _STREAMS + 10_000 * device + thread if on_gpu else thread


def _event(event: dict[str, Any], shift: float, rank: int, end: float) -> Event | None:
    ts, thread, category = event["ts"] + shift, _thread(event), str(event.get("cat", ""))
    if event["ph"] == "X" and category not in _DURATIONS:
        return None
    if ts > end:
        return None
    shown = {"ts": round(ts, 3), "pid": rank, "tid": thread, "ph": event["ph"], "cat": category, "name": event["name"]}
    duration = 0.0
    if event["ph"] == "X":
        duration = min(float(event["dur"]), end - ts)
        shown["dur"] = round(duration, 3)
    else:
        shown["id"] = f"{rank}.{event['id']}"
        shown.update({"bp": event["bp"]} if "bp" in event else {})
    return Event(ts, duration, thread, str(event["name"]) if event["ph"] == "X" else "", category, json.dumps(shown))


def _wait(recording: Recording, begin: int, end: int, rank: int) -> Event:
    ts, duration, name = _microseconds(recording, begin), (end - begin) / 1000, "horovod:synchronize"
    shown = {"ts": round(ts, 3), "pid": rank, "tid": recording.native_thread, "ph": "X", "cat": "horovod", "name": name,
             "dur": round(duration, 3)}  # fmt: skip
    return Event(ts, duration, recording.native_thread, name, "horovod", json.dumps(shown))


# the files -----------------------------------------------------------------------------------------


def _microseconds(recording: Recording, moment: int) -> float:
    return (moment + recording.epoch - recording.zero) / 1000


def _write_trace(
    path: Path, events: list[Event], names: dict[int, str], recording: Recording, rank: int, host: str
) -> None:
    steps = list(_steps(recording, rank))
    extra = recording.timeline.events(recording, rank) if recording.timeline is not None else ([], [])
    merged = sorted([*((one.ts, one.line) for one in events), *steps, *extra[1]], key=lambda one: one[0])
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123, SIM117
        with gzip.GzipFile("", "wb", 5, file, mtime=0) as out:
            used = {one.thread for one in events}
            threads = {thread: name for thread, name in names.items() if thread in used}
            for line in _head(rank, host, threads):
                out.write(line.encode() + b"\n")
            for line in extra[0]:
                out.write(line.encode() + b"\n")
            for _, line in merged:
                out.write(line.encode() + b"\n")


def _head(rank: int, host: str, names: dict[int, str]) -> Iterator[str]:
    shown = f"rank {rank} on {host}" if host else f"rank {rank}"
    yield metadata("process_name", rank, name=shown)
    yield metadata("process_sort_index", rank, sort_index=rank)
    yield metadata("thread_name", rank, STEPS, name="steps")
    yield metadata("thread_sort_index", rank, STEPS, sort_index=-1)
    for thread, name in sorted(names.items()):
        yield metadata("thread_name", rank, thread, name=name)


def metadata(what: str, pid: int, tid: int = 0, **fields: Any) -> str:
    """Return a line that names a process or thread, or says where it stands; it belongs to no moment."""
    return json.dumps({"ts": 0, "pid": pid, "tid": tid, "ph": "M", "name": what, "args": fields})


def _steps(recording: Recording, rank: int) -> Iterator[tuple[float, str]]:
    """Yield the events of the track ``steps`` with their moments."""
    last = recording.steps[-1][1]
    named = {"data": "waits for data", "wait": "waits for collective operations"}
    spans = [(f"step {at + 1}", *span) for at, span in enumerate(recording.steps)]
    spans += [(named[what], begin, end) for what, begin, end in recording.intervals if begin < last]
    for name, begin, end in spans:
        ts, duration = _microseconds(recording, begin), (min(end, last) - begin) / 1000
        yield ts, json.dumps({"ts": round(ts, 3), "pid": rank, "tid": STEPS, "ph": "X", "cat": "steps", "name": name,
                              "dur": round(duration, 3)})  # fmt: skip


def _summary(
    recording: Recording, events: list[Event], rank: int, host: str, left_out: int, work: list[Span]
) -> dict[str, Any]:
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
        "events": len(events),
        "left_out": left_out,
        "gpu": any(one.category in _ON_GPU for one in events),
    }


def operators(events: Iterable[Event]) -> list[list[Any]]:
    """Return the name, kind, calls, own and total microseconds of each operator, most own time first.

    The events are in their order: of two that begin together the longer one comes first.
    """
    found: dict[tuple[str, str], list[float]] = {}
    open_: dict[int, list[tuple[float, list[float]]]] = {}
    for one in events:
        if not one.name or one.category.startswith("cuda_"):
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


# Horovod -------------------------------------------------------------------------------------------


def horovod() -> Any:
    """Return ``horovod.torch`` where it runs, else None."""
    hvd = sys.modules.get("horovod.torch")
    return hvd if hvd is not None and hvd.is_initialized() else None


class HorovodTimeline:
    """Horovod's timeline of one recording: for each tensor when ranks announced it and what was done with it.

    Only the coordinator, rank 0, writes one. Its times count from the begin, which it gives in microseconds since 1970.
    """

    @classmethod
    def begin(cls, hvd: Any) -> HorovodTimeline | None:
        """Begin one; None where Horovod does not run or refuses it."""
        try:
            return None if hvd is None else cls(hvd)
        except Exception:  # noqa: BLE001  it is an extra: the profile goes on without
            return None

    def __init__(self, hvd: Any) -> None:
        self._hvd, self._writes = hvd, hvd.rank() == 0
        handle, path = tempfile.mkstemp(prefix="distdl-timeline-", suffix=".json")
        os.close(handle)
        self._path = Path(path)
        try:
            hvd.start_timeline(path)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def stop(self) -> None:
        """Stop it, without waiting for its last words."""
        with contextlib.suppress(Exception):
            self._hvd.stop_timeline()

    def events(self, recording: Recording, rank: int) -> tuple[list[str], list[tuple[float, str]]]:
        """Return lines that name its groups, and its events with their moments; then its file is gone."""
        try:
            return self._read(recording, rank) if self._writes else ([], [])
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return [], []  # it is an extra
        finally:
            self._path.unlink(missing_ok=True)

    def _read(self, recording: Recording, rank: int) -> tuple[list[str], list[tuple[float, str]]]:
        """Its file is a list whose end is missing while it is being written."""
        size = -1
        while self._path.stat().st_size != size:  # its writer is a thread of Horovod's
            size = self._path.stat().st_size
            time.sleep(_QUIET)
        heads: list[str] = []
        found: list[tuple[float, str]] = []
        began = 0.0
        with self._path.open(encoding="utf-8", errors="replace") as file:
            for event in _members(file, file.read(_PIECE).lstrip().removeprefix("[")):
                about = event.get("args") or {}
                began = float(about.get("start_time_since_epoch_in_micros", began))
                pid = HOROVOD + int(event.get("pid", 0))
                if event["ph"] == "M" and "name" in about:
                    heads.append(metadata("process_name", pid, name=f"Horovod: {about['name']}"))
                    heads.append(metadata("process_sort_index", pid, sort_index=pid))
                elif event["ph"] != "M" and len(found) < MOST_EVENTS:
                    ts = began - recording.zero / 1000 + float(event["ts"])
                    shown = {"ts": round(ts, 3), "pid": pid, "tid": int(event.get("tid", 0)), "cat": "horovod"}
                    found.append((ts, json.dumps(shown | {name: event[name] for name in _KEPT if name in event})))
        return heads, found

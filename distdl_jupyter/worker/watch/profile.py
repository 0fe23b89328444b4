"""Records some training steps of this rank with torch's profiler, when the job requests it while it runs.

* A request is a file ``rank-N.profile`` in the folder of the rank's named pipes, which the node's agent writes
  (``node.profile``). The rank looks for it after optimizer steps of torch, at most ten times a second.
* The rank reports its current step (``armed``) and how long the last one took. From all answers the supervisor chooses
  the step with which the recording begins, so that all ranks record the same steps, and adds it to the file as
  ``start``.
* Steps are those of ``step_times``, whose waits for batches and for collective operations go into the summary. Of
  several optimizers that step after one backward pass the first one ends the step here.
* A thread writes the files while training continues: torch's Chrome trace, ``rank-N.json.gz``, and a summary,
  ``rank-N.json``, which has, in microseconds since the first recorded step began::

    {"rank", "host", "pid", "first", "steps": [[begin, end]], "waits": [["data" | "wait", begin, end]],
     "operators": [[name, kind, calls, own, total]], "computing", "gpu"}

``computing`` is for how long in the steps an operator computed, here or on a GPU, while no wait was measured. ``kind``
is compute, communication, gpu, or python for parts of a step that torch annotates. An event's own time is its duration
without the events inside it on the same thread. This is the only module that uses the profiler's ``kineto_results``
(torch 2.3 and later); with a torch without them the table of operators is empty.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.worker import channel, stacks
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.step_times import now, recorder
from distdl_jupyter.worker.watch import step_hooks
from distdl_jupyter.worker.watch.hooks import PostImport

#: Folder of the job in which a rank leaves what it has recorded.
FOLDER = "profiles"
#: Nanoseconds between two looks for a request, and between two reports of progress.
_LOOK, _REPORT = 100_000_000, 1_000_000_000
#: Seconds that an armed rank waits for the step at which all begin; those that training has to save what it recorded.
_ARMED, _SAVE = 40.0, 60.0
#: Operators of a summary, those with the most time of their own.
_MOST_OPERATORS = 300
_DURATIONS = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: Kinds of events that are work of their own.
_WORK = ("compute", "gpu")
_COMMUNICATION = (
    *("gloo:", "horovod:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:", "xccl:"),
    "_c10d_functional::",
)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class RankProfiler:
    """The profiles of one process. All but ``finish`` runs in the thread that trains."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._identity: Identity | None = None
        self._next_look = 0
        #: The step that was seen last, when it ended, and how long it took.
        self._step, self._last, self._pace = -1, 0, 0
        #: The number of the request that was obeyed last, and when this rank was armed for the present one.
        self._number = 0
        self._armed: tuple[dict[str, Any], int] | None = None
        self._recording: Recording | None = None
        self._saving: threading.Thread | None = None

    def offer(self, identity: Identity) -> None:
        """Look for requests from now on; without a folder of this run there are none."""
        folder = os.environ.get(stacks.VARIABLE) or identity.pipes
        if folder is not None:
            self._path, self._identity = Path(folder) / f"rank-{identity.rank}.profile", identity

    def stepped(self, *_: Any) -> None:
        """Take that an optimizer has stepped."""
        if self._path is None or recorder.step == self._step:
            return
        steps, self._step = recorder.step - self._step, recorder.step
        try:
            self._advance(steps)
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            self._fail(f"{type(error).__name__}: {error!s:.200}")

    def _advance(self, steps: int) -> None:
        if self._recording is not None:
            if self._recording.stepped():
                self._save()
            return
        moment = now()
        self._pace, self._last = (moment - self._last) // steps, moment
        if moment >= self._next_look:
            self._next_look = moment + _LOOK
            self._look(moment)
        if self._armed is not None and self._may_begin(moment):
            request, self._armed = self._armed[0], None
            self._recording = Recording(request, self._step + 1)

    def _look(self, moment: int) -> None:
        assert self._path is not None
        if self._saving is not None and self._saving.is_alive():
            return
        request = _request(self._path)
        if request is None or request["number"] <= self._number:
            return
        if request["steps"] < 1:  # it was taken back
            self._number, self._armed = request["number"], None
            recorder.measure_all(on=False)
        elif self._armed is None or self._armed[0]["number"] != request["number"]:
            self._armed = request, moment
            recorder.measure_all(on=True)
            _report(request["number"], "armed", step=self._step, pace=self._pace)
        else:
            self._armed = request, self._armed[1]

    def _may_begin(self, moment: int) -> bool:
        """Say whether this is the step, or one that is told too late, or nobody has told any for long."""
        assert self._armed is not None
        request, since = self._armed
        start = request.get("start")
        late = moment - since > _ARMED * 1e9
        return late or (isinstance(start, int) and self._step >= start)

    def _fail(self, text: str) -> None:
        recording, self._recording, self._armed = self._recording, None, None
        recorder.measure_all(on=False)
        if recording is not None:
            self._number = recording.number
            with contextlib.suppress(Exception):
                recording.stop()
            _report(recording.number, "failed", text=text)
        else:
            self._path = None  # what cannot even be begun is not tried at each step

    def _save(self) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        assert self._identity is not None
        self._number = recording.number
        recording.stop()
        _report(recording.number, "saving", step=len(recording.steps))
        self._saving = threading.Thread(target=_write, args=(recording, self._identity), name="distdl-profile")
        self._saving.start()

    def finish(self) -> None:
        """Save what is recorded when the rank's code has ended."""
        if self._recording is not None:
            try:
                self._save()
            except Exception as error:  # noqa: BLE001  see ``stepped``
                self._fail(f"{type(error).__name__}: {error!s:.200}")
        if self._saving is not None:
            self._saving.join(_SAVE)


class Recording:
    """Torch's profiler, and what the hooks of ``step_times`` measure meanwhile. Moments are those of ``now``."""

    def __init__(self, request: dict[str, Any], first: int) -> None:
        from torch import profiler  # with torch itself it is imported already

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else its library writes on stderr when it begins and ends
        self.number, self.wanted = int(request["number"]), int(request["steps"])
        #: The number of the first step.
        self.first = first
        self.steps: list[tuple[int, int]] = []
        #: "data" or "wait" with their begin and end.
        self.intervals: list[tuple[str, int, int]] = []
        self._thread = threading.get_ident()
        self._reported = 0
        self.horovod = horovod()
        _report(self.number, "recording", step=0)
        self.profiler: Any = profiler.profile()  # of processor and GPU, where there is one
        self.profiler.start()
        #: Nanoseconds since the epoch at the zero of ``now``, and at the begin of the first step.
        self.epoch = time.time_ns() - now()
        for name in ("data", "wait"):
            vars(recorder)[name] = self._noting(name, getattr(recorder, name))
        self._begin = now()
        self.zero = self.epoch + self._begin

    def _noting(self, name: str, original: Callable[..., None]) -> Callable[..., None]:
        def noting(begin: int, *args: Any) -> None:
            end = now()
            original(begin, *args)
            if threading.get_ident() == self._thread:
                self.intervals.append((name, begin, end))

        return noting

    def stepped(self) -> bool:
        """Take that a step has ended; return whether all are recorded."""
        end = now()
        self.steps.append((self._begin, end))
        self._begin = end
        done = len(self.steps) >= self.wanted
        if not done and end - self._reported > _REPORT:
            self._reported = end
            _report(self.number, "recording", step=len(self.steps))
        return done

    def stop(self) -> None:
        """Stop recording."""
        for name in ("data", "wait"):
            vars(recorder).pop(name, None)
        recorder.measure_all(on=False)
        profiling, self.profiler = self.profiler, None
        if profiling is not None:
            profiling.stop()
            self.result = profiling


def _write(recording: Recording, identity: Identity) -> None:
    """Write the trace of a recording, and report that it is there."""
    number = recording.number
    try:
        if not recording.steps:
            _report(number, "failed", text="The training ended before a step was recorded.")
            return
        size = write(recording, identity.folder / FOLDER / str(number), identity.rank, identity.host)
        _report(number, "done", bytes=size, step=len(recording.steps))
    except OSError as error:
        _report(number, "failed", text=f"Its trace cannot be written: {error.strerror or error}.")
    except Exception as error:  # noqa: BLE001  the training goes on
        _report(number, "failed", text=f"Its trace cannot be written: {type(error).__name__}: {error!s:.200}.")


# the files ---------------------------------------------------------------------------------------

Span = tuple[float, float]


class Event(NamedTuple):
    """An interval in microseconds. ``thread`` is one of this process, or a GPU and its stream."""

    ts: float
    duration: float
    thread: Any
    name: str
    category: str


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
        hidden[2].write_text(json.dumps(_summary(recording, rank, host)), encoding="utf-8")
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


def _events(recording: Recording) -> Iterator[Event]:
    """Yield what torch has recorded in the steps."""
    end = _microseconds(recording, recording.steps[-1][1])
    results, training = getattr(recording.result.profiler, "kineto_results", None), None
    for event in results.events() if results is not None else ():
        if not hasattr(event, "start_ns") or not hasattr(event, "activity_type"):
            return
        category, ts = event.activity_type(), (event.start_ns() - recording.zero) / 1000
        if category in _DURATIONS and ts <= end:
            on_gpu = category in _ON_GPU
            thread = (event.device_index(), event.device_resource_id()) if on_gpu else event.start_thread_id()
            if (name := event.name()).startswith("Optimizer.step"):
                training = thread
            yield Event(ts, min(event.duration_ns() / 1000, end - ts), thread, name, category)
    if recording.horovod is not None:  # torch's profiler sees nothing of its collective operations
        for what, begin, stop in recording.intervals:
            ts = _microseconds(recording, begin)
            if what == "wait" and ts < end:
                duration = min(_microseconds(recording, stop), end) - ts
                yield Event(ts, duration, training, "horovod:synchronize", "horovod")


def _microseconds(recording: Recording, moment: int) -> float:
    return (moment + recording.epoch - recording.zero) / 1000


def _summary(recording: Recording, rank: int, host: str) -> dict[str, Any]:
    events = sorted(_events(recording), key=lambda event: (event.ts, -event.duration))
    work = [(event.ts, event.ts + event.duration) for event in events if kind(event.name, event.category) in _WORK]

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
        "gpu": any(event.category in _ON_GPU for event in events),
    }


def united(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in their order, those that touch each other as one."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def operators(events: Iterable[Event]) -> list[list[Any]]:
    """Return the name, kind, calls, own and total microseconds of each operator, most own time first.

    The events are in their order: of two that begin together the longer one comes first.
    """
    found: dict[tuple[str, str], list[float]] = {}
    open_: dict[Any, list[tuple[float, list[float]]]] = {}
    for one in events:
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
    if name.startswith(_COMMUNICATION):
        return "communication"
    if category in _ON_GPU:
        return "gpu"
    return "python" if category == "user_annotation" else "compute"


def horovod() -> Any:
    """Return ``horovod.torch`` where it runs, else None."""
    hvd = sys.modules.get("horovod.torch")
    return hvd if hvd is not None and hvd.is_initialized() else None


def _report(number: int, status: str, **fields: Any) -> None:
    channel.send("profile", number=number, status=status, **fields)


def _request(path: Path) -> dict[str, Any] | None:
    """Return what is asked for, None for nothing that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    names = ("number", "steps")
    return found if isinstance(found, dict) and all(type(found.get(name)) is int for name in names) else None


#: That of this process; only a rank looks for requests.
profiler = RankProfiler()


def watch(_finder: PostImport) -> None:
    """Ask to be told of steps."""
    step_hooks.listen(profiler.stepped)


def _forget() -> None:
    profiler.__init__()  # type: ignore[misc]


# A process that training code forks is no rank.
os.register_at_fork(after_in_child=_forget)

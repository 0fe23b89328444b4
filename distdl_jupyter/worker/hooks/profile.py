"""Records some training steps of this rank with torch's profiler, when the job requests it while it runs.

* A request is a file ``rank-N.profile`` in the folder of the rank's named pipes, which the node's agent writes
  (``node.run_dir``). The rank looks for it after optimizer steps of torch, at most ten times a second.
* The rank reports its current step (``armed``) and how long the last one took. From all reports the supervisor chooses
  the step with which the recording begins, so that all ranks record the same steps, and adds it to the file as
  ``start``.
* Steps are those of ``step_times``. Of several optimizers that step after one backward pass the first one ends the step
  here.
* A thread writes the files while training continues: torch's Chrome trace, ``rank-N.json.gz``, and a summary,
  ``rank-N.json``::

    {"rank", "host", "first" (step), "steps" (number), "seconds" (of them all),
     "operators": [[name, kind, calls, own microseconds]], "gpu"}

``kind`` is compute, communication, gpu, or python for parts of a step that torch annotates.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, stacks
from distdl_jupyter.worker.hooks import horovod, steps
from distdl_jupyter.worker.hooks.imports import PostImport
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.step_times import now, recorder

#: Folder of the job in which a rank stores what it has recorded.
FOLDER = "profiles"
#: Nanoseconds between two looks for a request, and between two reports of progress.
_LOOK, _REPORT = 100_000_000, 1_000_000_000
#: Seconds that an armed rank waits for the step at which all begin; those that training has to save what it recorded.
_ARMED, _SAVE = 40.0, 60.0
#: Operators of a summary, those with the most time of their own.
_MOST_OPERATORS = 300
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
        """Return whether this is the step to begin with, or a later one, or no step was requested for long."""
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
        _report(recording.number, "saving", step=recording.steps)
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
    """Torch's profiler, for some steps. Moments are those of ``now``."""

    def __init__(self, request: dict[str, Any], first: int) -> None:
        from torch import profiler  # with torch itself it is imported already

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else its library writes on stderr when it begins and ends
        self.number, self.wanted = int(request["number"]), int(request["steps"])
        #: The number of the first step, how many are recorded, and the moments of their begin and end.
        self.first, self.steps = first, 0
        self._reported = 0
        _report(self.number, "recording", step=0)
        self.profiler = profiler.profile()  # of processor and GPU, where there is one
        self.profiler.start()
        if horovod.running() is not None:
            self._annotate(profiler.record_function)
        self.begin = self.end = now()

    def _annotate(self, record_function: Any) -> None:
        """Record this thread's waits for Horovod's operations, of which torch's profiler knows nothing."""
        begin, wait, thread = recorder.begin, recorder.wait, threading.get_ident()
        opened: list[Any] = []

        def begun(part: str) -> int:
            if part == "wait" and threading.get_ident() == thread:
                opened.append(record_function("horovod:synchronize"))
                opened[-1].__enter__()
            return begin(part)

        def waited(moment: int) -> None:
            if opened and threading.get_ident() == thread:
                opened.pop().__exit__(None, None, None)
            wait(moment)

        vars(recorder).update(begin=begun, wait=waited)

    def stepped(self) -> bool:
        """Count a step that has ended; return whether all are recorded."""
        self.steps, self.end = self.steps + 1, now()
        done = self.steps >= self.wanted
        if not done and self.end - self._reported > _REPORT:
            self._reported = self.end
            _report(self.number, "recording", step=self.steps)
        return done

    def stop(self) -> None:
        """Stop recording."""
        for name in ("begin", "wait"):
            vars(recorder).pop(name, None)
        recorder.measure_all(on=False)
        self.profiler.stop()


def _write(recording: Recording, identity: Identity) -> None:
    """Write the trace of a recording, and report it."""
    number = recording.number
    try:
        if not recording.steps:
            _report(number, "failed", text="The training ended before a step was recorded.")
            return
        size = _write_files(recording, identity.folder / FOLDER / str(number), identity)
        _report(number, "done", bytes=size, step=recording.steps)
    except OSError as error:
        _report(number, "failed", text=f"Its trace cannot be written: {error.strerror or error}.")
    except Exception as error:  # noqa: BLE001  the training continues
        _report(number, "failed", text=f"Its trace cannot be written: {type(error).__name__}: {error!s:.200}.")


def _write_files(recording: Recording, folder: Path, identity: Identity) -> int:
    """Write both files of a recording that has stopped and return their bytes. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    raw = folder / f".rank-{identity.rank}.raw.json"
    trace, about = folder / f"rank-{identity.rank}.json.gz", folder / f"rank-{identity.rank}.json"
    hidden = [raw, folder / f".{trace.name}", folder / f".{about.name}"]
    try:
        os.close(os.open(raw, _NEW_FILE, 0o600))
        recording.profiler.export_chrome_trace(str(raw))
        if not raw.stat().st_size:
            raise OSError(28, "No space left on device")
        hidden[2].write_text(json.dumps(_summary(recording, identity)), encoding="utf-8")
        with (
            raw.open("rb") as source,
            open(os.open(hidden[1], _NEW_FILE, 0o600), "wb") as file,  # noqa: PTH123  a descriptor
            gzip.GzipFile("", "wb", 5, file, mtime=0) as out,
        ):
            shutil.copyfileobj(source, out)
        hidden[1].replace(trace)
        hidden[2].replace(about)
    finally:
        for path in hidden:
            path.unlink(missing_ok=True)
    return trace.stat().st_size + about.stat().st_size


def _summary(recording: Recording, identity: Identity) -> dict[str, Any]:
    rows = [row for event in recording.profiler.key_averages() if (row := _operator(event)) is not None]
    return {
        "rank": identity.rank,
        "host": identity.host,
        "first": recording.first,
        "steps": recording.steps,
        "seconds": (recording.end - recording.begin) / 1e9,
        "operators": sorted(rows, key=lambda row: -row[3])[:_MOST_OPERATORS],
        "gpu": any(row[1] == "gpu" for row in rows),
    }


def _operator(event: Any) -> list[Any] | None:
    """Return name, kind, calls and own microseconds of an operator; None for a GPU's copy of an annotation."""
    on_gpu, is_annotation = event.device_type.name != "CPU", getattr(event, "is_user_annotation", False)
    if on_gpu and is_annotation:
        return None
    kind = "gpu" if on_gpu else "python" if is_annotation else "compute"
    # What begins in one thread and ends in another, as Gloo's operations do, has no time of its own for torch.
    on_cpu = event.cpu_time_total if event.is_async else event.self_cpu_time_total
    own = event.self_device_time_total if on_gpu else on_cpu
    return [event.key, "communication" if event.key.startswith(_COMMUNICATION) else kind, event.count, round(own, 3)]


def _report(number: int, status: str, **fields: Any) -> None:
    channel.send("profile", number=number, status=status, **fields)


def _request(path: Path) -> dict[str, Any] | None:
    """Return the request in a file, None without one that can be read."""
    try:
        request = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_valid = isinstance(request, dict) and all(type(request.get(name)) is int for name in ("number", "steps"))
    return request if is_valid else None


#: That of this process; only a rank looks for requests.
profiler = RankProfiler()


def watch(_finder: PostImport) -> None:
    """Follow the steps."""
    steps.listen(profiler.stepped)


def _forget() -> None:
    profiler.__init__()  # type: ignore[misc]


# A process that training code forks is not a rank.
os.register_at_fork(after_in_child=_forget)

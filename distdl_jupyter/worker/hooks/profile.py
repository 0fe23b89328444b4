"""Records some training steps of this rank with torch's profiler, when a user requests it while the job runs.

* A request is a file ``rank-N.profile`` in the folder of the rank's named pipes, written by the node's agent
  (``node.run_dir``). The rank polls for it after optimizer steps, at most ten times per second. Requests expire.
* The rank reports the number and duration of its last step (``armed``). The supervisor chooses the step at which all
  ranks begin to record, and adds it to the file as ``start``.
* Steps are those of ``step_times``. If several optimizers step after one backward pass, the first ends the step.
* A thread writes the files while training continues: torch's Chrome trace, ``rank-N.json.gz``, and a summary,
  ``rank-N.json``::

    {"rank", "host", "first" (step), "steps" (number), "seconds" (of them all),
     "operators": [[name, kind, calls, own microseconds]], "gpu"}

``kind`` is compute, communication, gpu, or python (parts of a step that torch annotates).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, stacks
from distdl_jupyter.worker.hooks import distributed, steps
from distdl_jupyter.worker.hooks.imports import PostImport
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.step_times import now, recorder

#: Subfolder of the job's folder for recordings.
FOLDER = "profiles"
#: Minimum nanoseconds between two polls for a request, and between two progress reports.
_POLL, _REPORT = 100_000_000, 1_000_000_000
#: Seconds after which a request expires, and timeout in seconds for the common start.
_EXPIRES, _ARMED = 30.0, 40.0
#: Timeout in seconds for writing the files at the end of the training.
_SAVE = 60.0
#: Maximum number of operators in a summary. Those with the most self time are listed.
_MOST_OPERATORS = 300
_COMMUNICATION = (
    *("gloo:", "horovod:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:", "xccl:"),
    "_c10d_functional::",
)


class RankProfiler:
    """Records profiles of one process on request. All methods except ``finish`` run in the training thread."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._identity: Identity | None = None
        self._next_poll = 0
        #: The number of the last step, its end time, and its duration in nanoseconds.
        self._step, self._last, self._pace = -1, 0, 0
        #: The number of the last completed request, and the current request with the time at which it was received.
        self._number = 0
        self._armed: tuple[dict[str, Any], int] | None = None
        self._recording: _Recording | None = None
        self._saving: threading.Thread | None = None

    def offer(self, identity: Identity) -> None:
        """Start accepting requests, if the run has a folder for them."""
        folder = os.environ.get(stacks.VARIABLE) or identity.pipes
        if folder is not None:
            self._path, self._identity = Path(folder) / f"rank-{identity.rank}.profile", identity

    def stepped(self, *_: Any) -> None:
        """Handle an optimizer step."""
        if self._path is None or recorder.step == self._step:
            return
        moment, steps, self._step = now(), recorder.step - self._step, recorder.step
        self._pace, self._last = (moment - self._last) // steps, moment
        try:
            if self._recording is not None:
                if self._recording.stepped():
                    self._save(self._recording)
            elif self._poll(self._path, moment):
                self._start(moment)
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            self._fail(error)

    def _poll(self, path: Path, moment: int) -> bool:
        """Read the request file if a poll is due. Return whether there is a request."""
        is_saving = self._saving is not None and self._saving.is_alive()
        if moment >= self._next_poll and not is_saving:
            self._next_poll = moment + _POLL
            request = _request(path)
            if request is not None and request["number"] > self._number:
                if self._armed is None or self._armed[0]["number"] != request["number"]:
                    self._armed = request, moment
                    recorder.measure_all(on=True)
                    _report(request["number"], "armed", step=self._step, pace=self._pace)
                self._armed = request, self._armed[1]
        return self._armed is not None

    def _start(self, moment: int) -> None:
        """Start recording when the common start is reached, or when it has not been received in time."""
        assert self._armed is not None
        request, since = self._armed
        start = request.get("start")
        if moment - since > _ARMED * 1e9 or (isinstance(start, int) and self._step >= start):
            self._armed, self._recording = None, _Recording(request, self._step + 1)

    def _fail(self, error: Exception) -> None:
        recording, self._recording, self._armed = self._recording, None, None
        recorder.measure_all(on=False)
        if recording is None:
            self._path = None  # do not retry a failed start at each step
            return
        self._number = recording.number
        with contextlib.suppress(Exception):
            recording.stop()
        _report(recording.number, "failed", text=f"{type(error).__name__}: {error!s:.200}")

    def _save(self, recording: _Recording) -> None:
        assert self._identity is not None
        self._recording, self._number = None, recording.number
        recording.stop()
        _report(recording.number, "saving", step=recording.steps)
        self._saving = threading.Thread(target=_write, args=(recording, self._identity), name="distdl-profile")
        self._saving.start()

    def finish(self) -> None:
        """Save the recording when the rank's code has ended."""
        if self._recording is not None:
            try:
                self._save(self._recording)
            except Exception as error:  # noqa: BLE001  see ``stepped``
                self._fail(error)
        if self._saving is not None:
            self._saving.join(_SAVE)


class _Recording:
    """A run of torch's profiler for some steps, from step ``first`` on."""

    def __init__(self, request: dict[str, Any], first: int) -> None:
        from torch import profiler  # already imported by torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes to stderr
        self.number, self._requested = int(request["number"]), int(request["steps"])
        self.first, self.steps = first, 0
        self._reported = 0
        _report(self.number, "recording", step=0)
        self.profiler = profiler.profile()  # CPU, and GPU if available
        self.profiler.start()
        if distributed.running_horovod() is not None:
            self._annotate(profiler.record_function)
        self._begin = self._end = now()

    @property
    def seconds(self) -> float:
        """The total time of the recorded steps."""
        return (self._end - self._begin) / 1e9

    def _annotate(self, record_function: Any) -> None:
        """Annotate this thread's waits for Horovod's operations, which torch's profiler does not record."""
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
        """Count a completed step; return whether all steps are recorded."""
        self.steps, self._end = self.steps + 1, now()
        done = self.steps >= self._requested
        if not done and self._end - self._reported > _REPORT:
            self._reported = self._end
            _report(self.number, "recording", step=self.steps)
        return done

    def stop(self) -> None:
        """Stop recording."""
        for name in ("begin", "wait"):
            vars(recorder).pop(name, None)
        recorder.measure_all(on=False)
        self.profiler.stop()


def _write(recording: _Recording, identity: Identity) -> None:
    """Write the files of a stopped recording and report the result."""
    if not recording.steps:
        _report(recording.number, "failed", text="The training ended before a step was recorded.")
        return
    path = identity.folder / FOLDER / str(recording.number) / f"rank-{identity.rank}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        recording.profiler.export_chrome_trace(f"{path}.gz")
        rows = [row for event in recording.profiler.key_averages() if (row := _operator(event)) is not None]
        summary = {
            "rank": identity.rank,
            "host": identity.host,
            "first": recording.first,
            "steps": recording.steps,
            "seconds": recording.seconds,
            "operators": sorted(rows, key=lambda row: -row[3])[:_MOST_OPERATORS],
            "gpu": any(row[1] == "gpu" for row in rows),
        }
        path.write_text(json.dumps(summary), encoding="utf-8")
        _report(recording.number, "done", step=recording.steps)
    except Exception as error:  # noqa: BLE001  the training continues
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error!s:.200}"
        _report(recording.number, "failed", text=f"Its trace cannot be written: {why}.")


def _operator(event: Any) -> list[Any] | None:
    """Return the name, kind, calls and self time in microseconds of an operator; None for an annotation on the GPU."""
    on_gpu, is_annotation = event.device_type.name != "CPU", getattr(event, "is_user_annotation", False)
    if on_gpu and is_annotation:
        return None
    kind = "gpu" if on_gpu else "python" if is_annotation else "compute"
    # torch does not compute a self time for events that end in another thread, such as Gloo's operations.
    on_cpu = event.cpu_time_total if event.is_async else event.self_cpu_time_total
    microseconds = event.self_device_time_total if on_gpu else on_cpu
    kind = "communication" if event.key.startswith(_COMMUNICATION) else kind
    return [event.key, kind, event.count, round(microseconds, 3)]


def _report(number: int, status: str, **fields: Any) -> None:
    channel.send("profile", number=number, status=status, **fields)


def _request(path: Path) -> dict[str, Any] | None:
    """Return the request in a file, None if it is missing, invalid or expired."""
    try:
        if time.time() - path.stat().st_mtime > _EXPIRES:
            return None
        request = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_valid = isinstance(request, dict) and all(type(request.get(name)) is int for name in ("number", "steps"))
    return request if is_valid else None


#: The profiler of this process; only a rank polls for requests.
profiler = RankProfiler()


def watch(_finder: PostImport) -> None:
    """Poll for requests after each measured step."""
    steps.listen(profiler.stepped)


def _forget() -> None:
    profiler.__init__()  # type: ignore[misc]


# A process that training code forks is not a rank.
os.register_at_fork(after_in_child=_forget)

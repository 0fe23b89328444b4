"""Records some training steps of this rank with torch's profiler, when the job is asked for it while it runs.

* A request is a file ``rank-N.profile`` in the folder of the rank's named pipes, which the node's agent writes
  (``node.run_dir``). It is looked for where an optimizer of torch has stepped, ten times a second at most; nothing else
  happens in a rank that is not asked.
* The rank says at which step it is (``armed``) and how long the last one took. From all answers the supervisor chooses
  the step with which the recording begins, so that all record the same ones, and adds it to the file as ``start``.
* Steps are those of ``step_times``, whose waits for batches and for collective operations go into the
  summary. Of several optimizers that step after one backward pass the first one ends the step here.
* The trace is written by a thread (``trace_file``), while training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, stacks
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.step_times import now, recorder
from distdl_jupyter.worker.watch import step_hooks, trace_file
from distdl_jupyter.worker.watch.hooks import PostImport

#: Folder of the job in which a rank leaves what it has recorded.
FOLDER = "profiles"
#: Nanoseconds between two looks for a request, and between two reports of progress.
_LOOK, _REPORT = 100_000_000, 1_000_000_000
#: Seconds that an armed rank waits for the step at which all begin; those that training has to save what it recorded.
_ARMED, _SAVE = 40.0, 60.0


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
        self._thread, self.native_thread = threading.get_ident(), threading.get_native_id()
        self._reported = 0
        self.horovod = trace_file.horovod()
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
        size = trace_file.write(recording, identity.folder / FOLDER / str(number), identity.rank, identity.host)
        _report(number, "done", bytes=size, step=len(recording.steps))
    except OSError as error:
        _report(number, "failed", text=f"Its trace cannot be written: {error.strerror or error}.")
    except Exception as error:  # noqa: BLE001  the training goes on
        _report(number, "failed", text=f"Its trace cannot be written: {type(error).__name__}: {error!s:.200}.")


def _report(number: int, status: str, **fields: Any) -> None:
    out = channel.current()
    if out is not None:
        out.send("profile", number=number, status=status, **fields)


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

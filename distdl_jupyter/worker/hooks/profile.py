"""Records some training steps of this rank with torch's profiler, when a user requests it while the job runs.

* After optimizer steps, the rank polls for a request, a file ``rank-N.profile`` that the node's agent writes into the
  folder of its named pipes (``node.run_dir``). It reports the number and duration of its last step (``armed``). The
  supervisor chooses the step at which all ranks begin to record, and adds it to the file as ``start``.
* A thread writes torch's Chrome trace, ``rank-N.json.gz``, and a summary, ``rank-N.json``, while training continues::

    {"rank", "host", "first" (step), "steps" (number), "seconds" (of them all),
     "operators": [[name, kind, calls, own microseconds]], "gpu"}

``kind`` is compute, communication, gpu, or python (parts of a step that torch annotates).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, streams
from distdl_jupyter.worker.hooks import steps
from distdl_jupyter.worker.hooks.imports import HookFinder
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.step_times import read_clock, recorder

#: Subfolder of the job's folder for recordings.
PROFILES_FOLDER = "profiles"
#: Minimum nanoseconds between two polls for a request, and between two progress reports.
_POLL_NS, _REPORT_NS = 100_000_000, 1_000_000_000
#: Seconds after which a request expires. The supervisor waits 30 s for the slowest rank before it sends the start.
_MAX_REQUEST_SECONDS = 45.0
#: Timeout in seconds for writing the files at the end of the training.
_SAVE_SECONDS = 60.0
#: Maximum number of operators in a summary. Those with the most self time are listed.
_MAX_OPERATORS = 300
_COMMUNICATION_PREFIXES = ("gloo:", "nccl", "c10d::", "_c10d_functional::", "mpi:", "ucc:", "xccl:")


class RankProfiler:
    """Records profiles of one process on request. All methods except ``finish`` run in the training thread."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._path: Path | None = None
        self._next_poll = self._next_report = 0
        #: The number of the last step, its end time, and its duration in nanoseconds.
        self._step, self._last_end, self._step_duration = -1, 0, 0
        #: The current request, and the number of the last completed one.
        self._request: dict[str, Any] | None = None
        self._number = 0
        #: torch's profiler while it records, the first step to record, and the time at which it began.
        self._profiler: Any = None
        self._first = self._begin = 0
        self._save_thread: threading.Thread | None = None

    def accept_requests(self, identity: Identity) -> None:
        """Start accepting requests, if the run has a folder for them."""
        folder = os.environ.get(streams.STACKS_FOLDER_VARIABLE) or identity.pipes
        if folder is not None:
            self._path, self._identity = Path(folder) / f"rank-{identity.rank}.profile", identity

    def handle_step(self, *_: Any) -> None:
        """Handle an optimizer step."""
        if self._path is None or recorder.step == self._step:
            return
        moment, count, self._step = read_clock(), recorder.step - self._step, recorder.step
        self._step_duration, self._last_end = (moment - self._last_end) // count, moment
        try:
            if self._profiler is None:
                self._poll(self._path, moment)
            elif self._request is not None and self._step - self._first + 1 >= self._request["steps"]:
                self._save()
            elif moment >= self._next_report:
                self._next_report = moment + _REPORT_NS
                self._report("recording", step=self._step - self._first + 1)
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            self._fail(error)

    def _poll(self, path: Path, moment: int) -> None:
        """Read the request if a poll is due, and start to record at its step."""
        if moment >= self._next_poll and (self._save_thread is None or not self._save_thread.is_alive()):
            self._next_poll = moment + _POLL_NS
            previous, self._request = self._request, _read_request(path, self._number)
            recorder.measure_all(is_on=self._request is not None)
            if self._request is not None and (previous is None or previous["number"] != self._request["number"]):
                self._report("armed", step=self._step, pace=self._step_duration)
        if self._request is None or self._step < self._request.get("start", math.inf):
            return
        from torch import profiler  # already imported by torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes to stderr
        self._report("recording", step=0)
        self._profiler = profiler.profile()  # CPU, and GPU if available
        self._profiler.start()
        self._first, self._begin = self._step + 1, read_clock()
        self._next_report = self._begin + _REPORT_NS

    def _save(self) -> None:
        """Stop recording, and write the files in a thread."""
        profiler, step_count, identity = self._profiler, self._step - self._first + 1, self._identity
        profiler.stop()
        self._complete()
        if not step_count or identity is None:
            self._report("failed", text="The training ended before a step was recorded.")
            return
        self._report("saving", step=step_count)
        summary = {"rank": identity.rank, "host": identity.host, "first": self._first, "steps": step_count}
        summary["seconds"] = (self._last_end - self._begin) / 1e9
        path = identity.folder / PROFILES_FOLDER / str(self._number) / f"rank-{identity.rank}.json"

        def write() -> None:
            try:
                _write(path, profiler, summary)
                self._report("done", step=step_count)
            except Exception as error:  # noqa: BLE001  the training continues
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error!s:.200}"
                self._report("failed", text=f"The trace cannot be written: {reason}.")

        self._save_thread = threading.Thread(target=write, name="distdl-profile")
        self._save_thread.start()

    def _fail(self, error: Exception) -> None:
        if self._request is None:
            self._path = None  # do not read the folder again at each step
            return
        with contextlib.suppress(Exception):
            self._profiler.stop()
        self._complete()
        self._report("failed", text=f"{type(error).__name__}: {error!s:.200}")

    def _complete(self) -> None:
        if self._request is not None:
            self._number = self._request["number"]
        self._profiler = self._request = None
        recorder.measure_all(is_on=False)

    def _report(self, status: str, **fields: Any) -> None:
        number = self._number if self._request is None else self._request["number"]
        channel.send("profile", number=number, status=status, **fields)

    def finish(self) -> None:
        """Save the recording when the rank's code has ended."""
        if self._profiler is not None:
            try:
                self._save()
            except Exception as error:  # noqa: BLE001  our failure must not become the user's
                self._fail(error)
        if self._save_thread is not None:
            self._save_thread.join(_SAVE_SECONDS)


def _read_request(path: Path, last_number: int) -> dict[str, Any] | None:
    """Return the request in a file, or None if it is missing, invalid, expired or not newer than ``last_number``."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        request: dict[str, Any] = json.loads(path.read_bytes())
        is_recent = time.time() - path.stat().st_mtime <= _MAX_REQUEST_SECONDS
        if is_recent and request["number"] > last_number and type(request["steps"]) is int:
            return request
    return None


def _write(path: Path, profiler: Any, summary: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    profiler.export_chrome_trace(f"{path}.gz")
    rows = []
    for event in profiler.key_averages():
        is_gpu, is_annotation = event.device_type.name != "CPU", getattr(event, "is_user_annotation", False)
        kind = "gpu" if is_gpu else "python" if is_annotation else "compute"
        kind = "communication" if event.key.startswith(_COMMUNICATION_PREFIXES) else kind
        # torch does not compute a self time for events that end in another thread, such as Gloo's operations.
        cpu_time = event.cpu_time_total if event.is_async else event.self_cpu_time_total
        microseconds = event.self_device_time_total if is_gpu else cpu_time
        if not (is_gpu and is_annotation):
            rows.append([event.key, kind, event.count, round(microseconds, 3)])
    operators = sorted(rows, key=lambda row: -row[3])[:_MAX_OPERATORS]
    summary |= {"operators": operators, "gpu": any(row[1] == "gpu" for row in rows)}
    path.write_text(json.dumps(summary), encoding="utf-8")


#: The profiler of this process; only a rank polls for requests.
profiler = RankProfiler()


def install_hooks(_finder: HookFinder) -> None:
    """Poll for requests after each measured step."""
    steps.listeners.append(profiler.handle_step)


# A process that training code forks is not a rank.
os.register_at_fork(after_in_child=profiler.__init__)  # type: ignore[misc]

"""Data of a job that is stored beside its events: pictures, step times, resources, checkpoints, the code's version.

If a file cannot be written, the data are dropped with a line in the log, and the job continues.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import math
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import NodeSample, RunNotice
from distdl_jupyter.core import checkpoints, events, files
from distdl_jupyter.core.events import VERSION, State, encode
from distdl_jupyter.core.humanize import count, ranks
from distdl_jupyter.core.logfile import LineFile
from distdl_jupyter.core.options import parse_keep_rule
from distdl_jupyter.core.resources import ResourceHistory, encode_sample
from distdl_jupyter.core.spec import GitState
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor.reports import PictureReport, Report, StepsReport, WeightsReport
from distdl_jupyter.worker import report as worker_report

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Maximum bytes of the file of step times, which only very many ranks reach (see worker.step_times).
_MAX_STEPS_BYTES = 200_000_000
#: Maximum number of steps that not all ranks have reported yet; beyond it, the oldest step is dropped.
_MAX_PENDING = 16
#: For up to this many ranks, one sample a second is stored on the first day. For more ranks and on later days, samples
#: are stored less often, so that the file grows by the size of one such day each time the job's age doubles.
_DENSE_RANKS, _DAY_SECONDS = 8, 86400.0
#: Seconds between two checks of the samples for problems; a check costs more than storing a sample.
_CHECK_SECONDS = 2.0
#: Codes of notes.
NOTE_CODES = {"memory": "memory-limit", "gpu_memory": "gpu-memory-grows", "gpu": "gpu-idle"}
#: Seconds between two checks for checkpoints to delete.
_PRUNE_SECONDS = 5.0
#: Maximum size of a stored diff in bytes, because notebooks with outputs are long; and seconds for one git command.
_MAX_DIFF_BYTES, _GIT_SECONDS = 1_000_000, 20.0
_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "--no-optional-locks")
_DIFF_ARGUMENTS = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
_PASSWORD = re.compile(r"(://)[^/\s@]*@")


class ReportStore:
    """Stores one type of data. It is created when the first report arrives."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._file: LineFile | None = None
        self._logged: set[str] = set()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._recorder.log(text)


class PictureStore(ReportStore):
    """Assembles pictures that ranks report in parts, and stores each as a file, an event and a log line.

    Ranks that show the same picture share one file, so their lines fold into one row, like equal prints. Data that are
    not a picture, do not fit together or exceed the limits of a job are dropped.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        super().__init__(recorder)
        #: The first parts of the picture that each rank reports, as base64.
        self._parts: dict[int, list[str]] = {}
        stored = ((number, recorder.folder.read_picture(number)) for number in range(1, worker_report.MAX_IMAGES + 1))
        #: The number of each stored picture, by its hash.
        self._numbers = {hashlib.sha256(picture[0]).digest(): number for number, picture in stored if picture}
        self._next = max([0, *self._numbers.values(), *(picture.number for picture in recorder.view.pictures)]) + 1

    def take(self, rank: int, report: PictureReport) -> None:
        """Add a part of a picture of one rank; store the picture with its last part."""
        parts = self._parts.setdefault(rank, [])
        if report.begin == 0:
            parts.clear()
        if report.begin != sum(map(len, parts)):
            return  # the first parts were read by a supervisor that died
        parts.append(report.data)
        if report.begin + len(report.data) < report.of:
            return
        try:
            data = binascii.a2b_base64("".join(self._parts.pop(rank)))
        except ValueError:
            return
        form = worker_report.detect_format(data) if len(data) <= worker_report.MAX_IMAGE_BYTES else None
        if form is None or (number := self._store(data, form.name)) is None:
            return
        size = {"form": form.name, "width": form.width, "height": form.height}
        self._recorder.write("picture", number=number, rank=rank, **size)
        text = f"[picture {number}: {form.width}×{form.height}]"
        name = self._recorder.folder.get_picture_path(number, form.name).name
        self._recorder.write("log", rank=rank, stream="out", text=text, picture=name)

    def _store(self, data: bytes, form: str) -> int | None:
        """Store a picture and return its number, or None if it cannot be stored."""
        key = hashlib.sha256(data).digest()
        if key not in self._numbers:
            number = self._next
            if number > worker_report.MAX_IMAGES:
                self._log_once(f"The job has shown {count(worker_report.MAX_IMAGES)} images; later ones are omitted.")
                return None
            file = self._recorder.folder.get_picture_path(number, form)
            try:
                file.parent.mkdir(mode=0o700, exist_ok=True)
                files.replace_file(file, data)
            except OSError as error:
                self._log_once(f"Images cannot be stored: {error.strerror}.")
                return None
            self._numbers[key], self._next = number, number + 1
        return self._numbers[key]


class StepTimeStore(ReportStore):
    """Stores the step times that ranks report, each report as a line of the job's ``steps.jsonl``."""

    def take(self, rank: int, report: StepsReport) -> None:
        """Store a report of one rank, with the number of restarts before it."""
        attempt = len(self._recorder.view.restarts)
        times = {"first": report.first, "size": report.size, "records": report.records}
        line = {"v": VERSION, "t": report.t, "type": "steps", "attempt": attempt, "rank": rank, **times}
        try:
            if self._file is None:
                self._file = LineFile(self._recorder.folder.steps)
            if self._file.size < _MAX_STEPS_BYTES:
                self._file.append(encode(line))
        except OSError as error:
            self._log_once(f"Step times cannot be stored: {error.strerror}.")
        if report.gpu_memory:
            self._recorder.get_part(ResourceRecorder).take_torch_memory(rank, report.gpu_memory)


class WeightChecker(ReportStore):
    """Compares the checksums of weights that ranks report, and notes the first step at which they differ.

    See ``worker.hooks.parallel`` for the checksum. Processor models round differently, so only ranks on the same
    model are compared.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        super().__init__(recorder)
        self._attempt = 0
        self._has_noted = False
        #: Device and checksum of each rank, by optimizer and step, until all ranks have reported the step.
        self._pending_sums: dict[tuple[int, int], dict[int, tuple[str, str]]] = {}
        #: The last step with equal weights, by optimizer.
        self._last_equal: dict[int, int] = {}

    def take(self, rank: int, report: WeightsReport) -> None:
        """Add the checksum of one rank after a step."""
        view = self._recorder.view
        if len(view.restarts) != self._attempt:
            self._attempt, self._pending_sums, self._last_equal = len(view.restarts), {}, {}
        step = (report.optimizer, report.step)
        sums = self._pending_sums.setdefault(step, {})
        sums[rank] = (report.device, report.sum)
        if len(sums) == view.process_count:
            del self._pending_sums[step]
            self._compare(*step, sums)
        elif len(self._pending_sums) > _MAX_PENDING:
            del self._pending_sums[min(self._pending_sums, key=lambda step_key: step_key[1])]

    def _compare(self, optimizer: int, step: int, by_rank: dict[int, tuple[str, str]]) -> None:
        counts = Counter(by_rank.values())  # in the order of the ranks that report first
        majority = {device: total for (device, total), _ in reversed(counts.most_common())}
        outliers = sorted(rank for rank, (device, total) in by_rank.items() if total != majority[device])
        if not outliers:
            if not self._last_equal:
                self._recorder.write("averaged")
            self._last_equal[optimizer] = step
        elif not self._has_noted:
            self._has_noted = True
            subject = f"The weights of {ranks(outliers)} of {count(len(by_rank))} differ from the others"
            subject = "The two ranks have different weights" if len(by_rank) == 2 else subject
            last_equal = self._last_equal.get(optimizer, 0)
            suffix = f", and the same after step {count(last_equal)}" if last_equal else ""
            remedy = "from this step onwards, each rank trains its own model. Find the cause with: distdl check"
            self._recorder.note("warning", f"{subject} after step {count(step)}{suffix}: {remedy}", "weights-depart")


class ResourceRecorder(ReportStore):
    """Stores the resource usage of ranks and machines in ``resources.jsonl``, and notes problems while the job runs."""

    def __init__(self, recorder: EventRecorder) -> None:
        super().__init__(recorder)
        self._history = ResourceHistory(recorder.folder.resources, curves=False)
        #: Time of the last sample of each node, because a new supervisor may receive samples that are already stored.
        self._last: dict[int, float] = {}
        #: The last torch memory reported by each rank, and the reports since the last stored sample.
        self._torch_memory: dict[int, Sequence[float]] = {}
        self._new_torch_memory: dict[int, Sequence[float]] = {}
        self._started_at: float | None = None
        self._noted: set[tuple[str, int]] = set()
        self._next_check = 0.0
        with contextlib.suppress(OSError):
            self._read_new()
            self._file = LineFile(recorder.folder.resources)

    def _read_new(self) -> None:
        for sample in self._history.read():
            self._started_at = sample.t if self._started_at is None else self._started_at
            self._last[sample.node] = sample.t

    def take_torch_memory(self, rank: int, memory: Sequence[float]) -> None:
        """Remember the GPU memory that torch has allocated and reserved in a rank (bytes), for the next sample."""
        if self._torch_memory.get(rank) != memory:
            self._torch_memory[rank] = self._new_torch_memory[rank] = memory

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Store samples, and note the problems that they show."""
        for node, data in samples:
            # The agent's data is untrusted; skip invalid samples.
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError):
                self._store(node, data)
        if samples and time.monotonic() >= self._next_check and self._recorder.view.state is State.RUNNING:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            # Pages show a problem while it lasts (``views.resources``); these notes are permanent.
            for problem in self._history.find_problems():
                self._note_once(problem.kind, problem.rank, problem.text, NOTE_CODES[problem.kind])
            for info in self._history.nodes.values():
                if info.gpu_error:
                    self._note_once("gpu", -1, f"{info.host}: {info.gpu_error}", "no-gpu-use")

    def _store(self, node: int, data: Mapping[str, Any]) -> None:
        t = float(data["t"])
        age = 0.0 if self._started_at is None else t - self._started_at
        pause = age / _DAY_SECONDS * self._recorder.view.process_count / _DENSE_RANKS
        if self._file is not None and t >= self._last.get(node, 0.0) + (pause if pause > 1.0 else 0.1):
            self._file.append(encode_sample(node, data, self._new_torch_memory))
            self._new_torch_memory = {}
            self._read_new()

    def _note_once(self, kind: str, rank: int, text: str, code: str) -> None:
        if (kind, rank) not in self._noted:
            self._noted.add((kind, rank))
            self._recorder.record_notice(RunNotice("info", text, code))


#: The store of each type of report.
STORES: dict[type[Report], type[Any]] = {
    PictureReport: PictureStore,
    StepsReport: StepTimeStore,
    WeightsReport: WeightChecker,
}


class CheckpointKeeper:
    """Deletes the checkpoints of a running job that ``keep_checkpoints`` does not retain.

    It runs periodically in its own thread, and once more at the end; ``removed`` counts the deleted ones. It only sees
    the job's folder: on nodes that do not share it, the training code deletes its checkpoints itself.
    """

    def __init__(self, folder: JobFolder, rule: str) -> None:
        self._folder, self._keep = folder, parse_keep_rule(rule)
        self._ended = threading.Event()
        self.removed_count = 0
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Delete checkpoints one last time, after all ranks have ended."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        store, cursor, has_ended = checkpoints.read_inherited_curves(self._folder), 0, False
        while not has_ended:
            has_ended = self._ended.wait(_PRUNE_SECONDS)
            new_events, cursor = events.read_all(self._folder.events, cursor)
            for event in new_events:
                store.apply(event)
            now = math.inf if has_ended else time.time()
            for checkpoint in checkpoints.find_superfluous(self._keep, checkpoints.find_all(self._folder, store), now):
                with contextlib.suppress(OSError):  # already deleted, or a disk error: the training continues
                    checkpoints.remove(checkpoint)
                    self.removed_count += 1


# the code in git ------------------------------------------------------------------------------


def read_git_state(folder: str) -> GitState | None:
    """Return the state of the repository around ``folder``, or None if git, a repository or a commit is missing.

    It runs no program that the repository configures: no hook, external diff, filter or file watcher.
    """
    if not which("git") or not Path(folder).is_dir():
        return None
    try:
        commit = _run_git(folder, "rev-parse", "HEAD").strip()
        diff = _run_git(folder, *_disable_filters(folder), *_DIFF_ARGUMENTS)
        untracked = _run_git(folder, "ls-files", "--others", "--exclude-standard", "--directory", "--full-name", ":/")
        branch = _run_git(folder, "rev-parse", "--abbrev-ref", "HEAD").strip()
        remote = _run_git(folder, "config", "--default", "", "--get", "remote.origin.url").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    branch, remote = "" if branch == "HEAD" else branch, _PASSWORD.sub(r"\1", remote)
    return GitState(commit, branch, remote, diff[:_MAX_DIFF_BYTES], len(diff) > _MAX_DIFF_BYTES, untracked.count("\n"))


def _disable_filters(folder: str) -> list[str]:
    """Return options that disable the repository's own filter programs (gitattributes)."""
    names = ""
    for scope in ("--local", "--worktree"):
        with contextlib.suppress(subprocess.CalledProcessError):  # multiple worktrees without separate configurations
            names += _run_git(folder, "config", scope, "--includes", "--name-only", "--null", "--list")
    filters = {name.rpartition(".")[0] for name in names.split("\0") if name.startswith("filter.")}
    settings = [f"{name}.{key}" for name in sorted(filters) for key in ("clean=", "process=", "required=false")]
    return [argument for setting in settings for argument in ("-c", setting)]


def _run_git(folder: str, *arguments: str) -> str:
    """Return git's output. Raises CalledProcessError, TimeoutExpired, OSError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", "-C", folder, *_SAFE_OPTIONS, *arguments]
    output = subprocess.check_output(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_GIT_SECONDS, env=environment
    )
    return output.decode(errors="replace")

"""Starting the processes that tell of a job: at its end, at an alert, and all along. All return at once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.monitoring import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distdl_jupyter.core.alerts import Alert
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.state import State
    from distdl_jupyter.core.store import JobFolder


def start(folder: JobFolder) -> bool:
    """Tell of an ended job when the user wants that and the environment says where to; say whether it was begun.

    What goes wrong stands in the job's ``supervisor.log`` and nowhere else.
    """
    try:
        with folder.supervisor_log.open("a", encoding="utf-8") as log:
            try:
                return _wanted() and _start(folder, log.fileno())
            except (DistDLError, OSError) as error:
                log.write(f"monitoring: not sent, {type(error).__name__}: {error}\n")
    except OSError:
        pass  # the job's folder was removed
    return False


def notify(folder: JobFolder, name: str, state: State, alert: Alert, id_: str = "") -> None:
    """Send an alert of a job, or of the study ``id_`` that it is a run of, where the user has named a webhook."""
    try:
        known = settings.read()
    except DistDLError:  # which is said when the job has ended
        return
    if not known.webhook or alert.kind not in known.kinds:
        return
    message = {"job": id_ or folder.id, "name": name, "state": state.value, "kind": alert.kind, "text": alert.text}
    with contextlib.suppress(OSError), folder.supervisor_log.open("a", encoding="utf-8") as log:
        words = ["distdl_jupyter.monitoring.webhook"]
        process = _process(words, log.fileno(), stdin=subprocess.PIPE, apart=bool(id_))
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(message).encode())
        _reap(process, f"message-{folder.id}")


#: Variables of a job that are its trackers' business.
_OF_TRACKERS = ("MLFLOW_", "WANDB_", "AZURE_", "AWS_", "DATABRICKS_")
#: Seconds between two looks at the trackers, and how often one that has crashed is started anew.
_LOOK_EVERY, _MOST_CRASHES = 1.0, 3


class TrackerProcesses:
    """The processes that write a job's runs (``monitoring.tracking``), as its supervisor starts and sees them."""

    def __init__(self, folder: JobFolder, spec: JobSpec, secret_variables: Mapping[str, str]) -> None:
        self._folder = folder
        known = {**spec.environment_variables, **secret_variables}
        self._variables = {name: value for name, value in known.items() if name.startswith(_OF_TRACKERS)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._crashes = dict.fromkeys(names := wanted(spec), 0)
        self._said = {name: tracking.read(folder.path, name).trouble for name in names}
        self._looked = 0.0

    def start(self) -> None:
        """Start each that does not run and has not all of the job; one that an earlier supervisor started runs on."""
        for name in self._crashes:
            if not self._runs(name) and not tracking.read(self._folder.path, name).done:
                with contextlib.suppress(OSError):
                    self._processes[name] = start_tracker(self._folder, name, self._variables)

    def _runs(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def news(self) -> Iterator[tuple[str, str]]:
        """Yield level and sentence for each tracker that has got into trouble or out of it."""
        if not self._crashes or (now := time.monotonic()) - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        for name in self._crashes:
            self._revive(name)
            record = tracking.read(self._folder.path, name)
            if record.trouble != self._said[name]:
                self._said[name] = record.trouble
                level = "warning" if record.trouble else "info"
                yield level, record.trouble or tracking.recovered(record)

    def _revive(self, name: str) -> None:
        ended = self._processes[name].poll() if name in self._processes else None
        if ended and self._crashes[name] < _MOST_CRASHES:
            self._crashes[name] += 1
            self.start()


def wanted(spec: JobSpec) -> tuple[str, ...]:
    """Return the trackers of a job: its own, else those of the settings, which runs of a scaling study leave out."""
    if spec.track:
        return tracking.names(spec.track)
    if spec.check or (spec.group is not None and spec.group.kind == "scale"):
        return ()
    try:
        return tracking.names(settings.read().track)
    except DistDLError:  # which is said when the job has ended
        return ()


def bring_up_to_date(folder: JobFolder, names: Sequence[str] = ()) -> dict[str, subprocess.Popen[bytes]]:
    """Start what brings trackers up to date with a job, and return the processes: by default all that it has and wants.

    Each ends at once where another one is at it.
    """
    known = [one.tracker for one in tracking.of_job(folder.path)]
    missing = [
        name for name in dict.fromkeys(names or (*known, *wanted(folder.spec())))
        if not tracking.read(folder.path, name).done
    ]  # fmt: skip
    found = {name: start_tracker(folder, name, {}, apart=True) for name in missing}
    for name, process in found.items():
        _reap(process, f"{name}-{folder.id}")
    return found


def _reap(process: subprocess.Popen[bytes], name: str) -> None:
    """Wait for a process in a thread. As for a supervisor: one that has ended is a zombie until someone waits."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name=f"reap-{name}", daemon=True).start()


def start_tracker(
    folder: JobFolder, name: str, variables: Mapping[str, str], *, apart: bool = False
) -> subprocess.Popen[bytes]:
    """Start the process that brings a tracker up to date with a job, ``apart`` by others than its supervisor.

    Raises OSError.
    """
    with folder.supervisor_log.open("a", encoding="utf-8") as log:
        words = ["distdl_jupyter.monitoring.tracking", str(folder.path), name]
        process = _process(words, log.fileno(), stdin=subprocess.PIPE, apart=apart)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(dict(variables)).encode())
    return process


def _wanted() -> bool:
    return bool(settings.destinations()) and settings.read().enabled


def _start(folder: JobFolder, log: int) -> bool:
    _process(["distdl_jupyter.monitoring", str(folder.path)], log)
    return True


def _process(
    words: list[str], log: int, stdin: int = subprocess.DEVNULL, *, apart: bool = False
) -> subprocess.Popen[bytes]:
    """Start a module that outlives this process: in the session of the supervisor, where no process of the job is.

    ``apart`` gives it a session of its own, which the end of a terminal does not reach.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *words],
        stdin=stdin,
        stdout=log,
        stderr=log,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"},
        process_group=None if apart else 0,
        start_new_session=apart,
    )

"""Starts supervisors, sends them requests, and reports jobs to other programs.

* A supervisor outlives the process that starts it. Jupyter signals the kernel's whole process group, so the supervisor
  gets its own session. It inherits the open descriptor of the job's lock, so the job always has a writer.
* A request is one JSON line appended to the job's ``control`` file. A file works from any process of the user, survives
  its sender, and needs no address and no short path, unlike a socket. A request is read within 0.1 s.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from distdl_jupyter import permissions
from distdl_jupyter.core import events, files, machine, tracking, user_settings
from distdl_jupyter.core.alerts import Alert
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes

#: Prefixes of the job's variables that are passed to its trackers.
_TRACKER_PREFIXES = ("MLFLOW_", "WANDB_", "AZURE_", "AWS_", "DATABRICKS_")


def start_supervisor(
    folder: JobFolder,
    lock: JobLock,
    secret_variables: Mapping[str, str],
    *,
    python: str = "",
    module: str = "distdl_jupyter.supervisor",
) -> None:
    """Start the supervisor of a published job with the interpreter ``python``, and pass it the lock.

    If that interpreter was removed, use the one of this process. ``module`` is the module to run: the supervisor, or
    the driver of a sweep. Raises LaunchFailed if it cannot be started or another user could have written its files,
    and OSError if the job's folder cannot be written.
    """
    if reason := permissions.find_refusal(folder.path.stat()):
        raise LaunchFailed(f"{folder.path} {reason}, so nothing is started there.", code="job-folder-unusable")
    program = python if os.access(python, os.X_OK) else sys.executable
    command = [program, "-P", "-m", module, str(folder.path), str(lock.fd)]
    with folder.supervisor_log.open("ab") as log:
        try:
            _spawn(command, log, dict(secret_variables), cwd=folder.path, pass_fds=(lock.fd,), start_new_session=True)
        except OSError as error:
            text = f"The job cannot be started: {error.strerror or error}."
            raise LaunchFailed(text, code="supervisor-not-started", hint=machine.find_remedy(error)) from error
    lock.release()


def _spawn(command: Sequence[str], log: IO[bytes], input_: Any, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process and send it one line of JSON. Raises OSError."""
    # A job submitted by a rank is not a process of that rank's job, so it does not inherit the job's mark.
    environment = {name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, **options)
    # An exited child stays a zombie until its parent waits for it. If no thread can be started, it stays one until this
    # process exits, which must not make a started job fail.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(input_).encode() + b"\n")
    return process


def start_reporter(
    folder: JobFolder, module: str, *arguments: str, input_: Any = None, detached: bool = False
) -> subprocess.Popen[bytes]:
    """Start a module of ``tracking`` as a process, so that a slow service delays no job. Raises OSError.

    It outlives this process. It is in the supervisor's session but in none of the job's process groups. ``detached``
    gives it its own session, so that it survives a closed terminal.
    """
    command = [sys.executable, "-P", "-m", f"distdl_jupyter.tracking.{module}", str(folder.path), *arguments]
    group = {"start_new_session": True} if detached else {"process_group": 0}
    with folder.supervisor_log.open("ab") as log:
        return _spawn(command, log, input_, cwd="/", **group)


def start_trackers(
    folder: JobFolder, names: Sequence[str], variables: Mapping[str, str] | None = None, *, detached: bool = False
) -> dict[str, subprocess.Popen[bytes]]:
    """Start and return the processes of the trackers that are not up to date with a job. Raises OSError.

    A process exits immediately if another one already writes the job to its tracker.
    """
    tracker_variables = {name: value for name, value in (variables or {}).items() if name.startswith(_TRACKER_PREFIXES)}
    pending = [name for name in dict.fromkeys(names) if not tracking.read_record(folder.path, name).done]
    return {name: start_reporter(folder, "runs", name, input_=tracker_variables, detached=detached) for name in pending}


def notify(folder: JobFolder, name: str, state: State, alert: Alert, id_: str = "") -> None:
    """Send an alert of a job, or of the study ``id_``, if the user has set an address. Do not wait."""
    with contextlib.suppress(OSError, DistDLError):  # broken settings are reported when the job has ended
        settings = user_settings.SETTINGS.read()
        if settings.address and alert.kind in settings.notify.split(","):
            title = f"{name} ({(id_ or folder.id).rpartition('-')[2]}): {state.value}"
            message = (settings.address, (title, alert.text, alert.kind))
            start_reporter(folder, "messages", input_=message, detached=bool(id_))


# requests -------------------------------------------------------------------------------------


def request(control: Path, action: str, **fields: Any) -> None:
    """Append a request ("cancel" with ``now``, ``reason``) for the supervisor. Raises DiskRefused."""
    # The first byte, a newline, terminates another request that was written only in part.
    line = b"\n" + json.dumps({"type": action, **fields}).encode() + b"\n"
    with files.explain_disk_errors(control):
        try:
            _append(control, line)
        except OSError:
            # A job must be cancelable on a full disk, so release half of the reserve.
            if not files.free_half_reserve(control.with_name("reserve")):
                raise
            _append(control, line)


@contextlib.contextmanager
def exclusive_lock(control: Path) -> Iterator[None]:
    """Wait for and hold the lock on requests that a job can serve only once, such as a move. Raises DiskRefused."""
    with files.explain_disk_errors(control):
        file = control.open("ab")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _append(control: Path, line: bytes) -> None:
    fd = os.open(control, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


#: Seconds between two checks of the process that controls a job, and the cancel reason after that process has exited.
_DRIVER_POLL_SECONDS = 1.0
DRIVER_ENDED_REASON = "The process that measured it has ended."


class ControlReader:
    """Returns each request to the supervisor once. Reading also updates the heartbeat that other hosts check.

    ``driver`` is the mark (``processes.make_mark``) of the process that will stop this job; if that process has exited,
    a cancel request is returned on its behalf.
    """

    def __init__(self, control: Path, lock: Path | None = None, driver: str = "") -> None:
        self._control = control
        self._lock = lock
        self._driver = driver
        self._next_beat = self._next_poll = time.monotonic()
        self._cursor = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the requests since the last call."""
        if self._lock is not None and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + files.HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):
                os.utime(self._lock)
        requests, self._cursor = events.read(self._control, self._cursor)
        if self._driver and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + _DRIVER_POLL_SECONDS
            if processes.has_ended(self._driver):
                self._driver = ""
                requests.append({"type": "cancel", "reason": DRIVER_ENDED_REASON})
        return requests

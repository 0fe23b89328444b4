"""Starting the processes that tell of a job: at its end, and at an alert. Both return at once and raise nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.monitoring import settings

if TYPE_CHECKING:
    from distdl_jupyter.core.alerts import Alert
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView


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


def notify(folder: JobFolder, view: JobView, alert: Alert) -> None:
    """Send an alert where the user has named a webhook."""
    try:
        known = settings.read()
    except DistDLError:  # which is said when the job has ended
        return
    if not known.webhook or alert.kind not in known.kinds:
        return
    message = {"job": view.id, "name": view.name, "state": view.state.value, "kind": alert.kind, "text": alert.text}
    with contextlib.suppress(OSError), folder.supervisor_log.open("a", encoding="utf-8") as log:
        process = _process(["distdl_jupyter.monitoring.webhook"], log.fileno(), stdin=subprocess.PIPE)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(message).encode())


def _wanted() -> bool:
    return bool(settings.destinations()) and settings.read().enabled


def _start(folder: JobFolder, log: int) -> bool:
    _process(["distdl_jupyter.monitoring", str(folder.path)], log)
    return True


def _process(words: list[str], log: int, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a module that outlives the supervisor and is no process of the job."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *words],
        stdin=stdin,
        stdout=log,
        stderr=log,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"},
        start_new_session=True,
    )

"""Starting a supervisor so that it outlives whoever asked for it.

Jupyter's interrupt and kill go to the kernel's whole process group, so the supervisor gets a session of its own. It is
handed the open descriptor of the job's lock: between submitter and supervisor there is no moment without a writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import LaunchFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.core.events import JobLock
    from distdl_jupyter.core.store import JobFolder


def start(folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], *, python: str = "") -> None:
    """Start the supervisor of a published job, under the interpreter ``python``, and give it the lock.

    Raises LaunchFailed when it cannot be started, and OSError when the job's folder cannot be written.
    """
    with folder.supervisor_log.open("ab") as log:
        try:
            process = _begun(folder, lock.fd, log, python or sys.executable)
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(json.dumps(dict(secret_variables)).encode() + b"\n")
        except OSError as error:
            reason = error.strerror or str(error)
            raise LaunchFailed(f"The job cannot be started: {reason}.", hint=limits.remedy(error)) from error
    lock.release()
    # A child that ended stays a zombie until somebody waits for it; nobody else here would. Where no thread can be had
    # it stays one until this process ends, which is no reason to refuse a job that has begun.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name=f"reap-{folder.id}", daemon=True).start()


def _begun(folder: JobFolder, lock: int, log: IO[bytes], python: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-P", "-m", "distdl_jupyter.supervisor", str(folder.path), str(lock)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd=folder.path,
        env=_without_mark(),
        pass_fds=(lock,),
        start_new_session=True,
    )


def _without_mark() -> dict[str, str]:
    """A job that a rank submits must not count as a process of that rank's job."""
    return {name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"}

"""Starting a supervisor so that it outlives whoever asked for it.

Jupyter's interrupt and kill go to the kernel's whole process group, so the supervisor gets a session of its own. It is
handed the open descriptor of the job's lock: between submitter and supervisor there is no moment without a writer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.core.events import JobLock
    from distdl_jupyter.core.store import JobFolder


def start(folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], *, python: str = "") -> None:
    """Start the supervisor of a published job, under the interpreter ``python``, and give it the lock.

    Raises OSError when it cannot be started.
    """
    with folder.supervisor_log.open("ab") as log:
        process = subprocess.Popen(
            [python or sys.executable, "-P", "-m", "distdl_jupyter.supervisor", str(folder.path), str(lock.fd)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            env=_without_mark(),
            pass_fds=(lock.fd,),
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(dict(secret_variables)).encode() + b"\n")
    lock.release()
    # A child that ended stays a zombie until somebody waits for it; nobody else here would.
    threading.Thread(target=process.wait, name=f"reap-{folder.id}", daemon=True).start()


def _without_mark() -> dict[str, str]:
    """A job that a rank submits must not count as a process of that rank's job."""
    return {name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"}

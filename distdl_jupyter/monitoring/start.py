"""Starting the process that tells of an ended job. It returns at once and raises nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.monitoring import settings

if TYPE_CHECKING:
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


def _wanted() -> bool:
    return bool(settings.destinations()) and settings.read().enabled


def _start(folder: JobFolder, log: int) -> bool:
    subprocess.Popen(
        [sys.executable, "-P", "-m", "distdl_jupyter.monitoring", str(folder.path)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"},
        start_new_session=True,
    )
    return True

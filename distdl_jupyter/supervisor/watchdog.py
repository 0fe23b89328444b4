"""The end of a job whose supervisor was killed, or cannot go on for want of processes, files or memory.

A watchdog process is the supervisor's parent and does nothing but wait for its end. Whatever a killed supervisor leaves
behind becomes its child on Linux, also a daemon that has left its session and cleared its environment; where there is
no such adoption the job's mark finds the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, NoReturn

from distdl_jupyter.core import events, limits
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.node import processes

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(job_id: str) -> None:
    """Go on in a child of this process, which stays as its watchdog and ends with it. Raises OSError.

    To be called before anything is begun: descriptors stay with the child, above all the job's lock.
    """
    processes.adopt_orphans()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return
    try:
        _wait_for(pid, job_id)
    finally:
        os._exit(0)


def _wait_for(supervisor: int, job_id: str) -> NoReturn:
    """Run in the parent: never returns."""
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: processes.send([supervisor], number))
    # The job's lock must be free when the supervisor is gone.
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") > 0 else 65_536)
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        processes.kill_job(job_id, timeout=10.0, orphans=True)
        with contextlib.suppress(OSError):
            _remove_run_folder(job_id)
    os._exit(0)


def _remove_run_folder(job_id: str) -> None:
    """Remove what lies outside of the job's folder, which the supervisor would have done."""
    from distdl_jupyter.node import run_dir

    run_dir.sweep(job_id)


def fail_fast(folder: JobFolder, error: BaseException) -> bool:
    """End every process of the job here and write why it has failed; the caller holds the job's lock.

    Returns False, and does nothing, for an error that no limit has caused. Raises OSError when nothing can be written.
    What the event recorder had not written yet is lost.
    """
    remedy = limits.remedy(error)
    if not remedy:
        return False
    processes.kill_job(folder.id, orphans=True)
    if not _view(folder).state.ended:
        reason = getattr(error, "strerror", None) or str(error) or "out of memory"
        writer = events.EventWriter(folder.events)
        writer.write("state", state=State.FAILED.value, reason=f"The job's supervisor failed: {reason}. {remedy}")
        writer.close()
    return True


def _view(folder: JobFolder) -> JobView:
    """Return the job as its events tell it, without the lines that it printed."""
    view = JobView.of(folder.spec())
    for found, _ in events.batches(folder.events):
        for event in found:
            view.apply(event)
    return view

"""The last belt: a tiny process that ends a job's ranks when its supervisor was killed.

It is the supervisor's parent and does nothing but wait for its end. Whatever a killed supervisor leaves behind becomes
its child on Linux, also a daemon that has left its session and cleared its environment; where there is no such adoption
the job's mark finds the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NoReturn

from distdl_jupyter.clusters import processes

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def guard(job_id: str) -> None:
    """Go on in a child of this process, which stays as its guardian and ends with it. Raises OSError.

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
        processes.kill_all(job_id, patience=10.0)
        with contextlib.suppress(OSError):
            _forget(job_id)
    os._exit(0)


def _forget(job_id: str) -> None:
    """Remove what lies outside of the job's folder, which the supervisor would have done."""
    from distdl_jupyter.host import runfolder

    runfolder.sweep(job_id)

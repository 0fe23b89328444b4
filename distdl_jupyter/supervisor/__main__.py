"""``python -m distdl_jupyter.supervisor JOB_FOLDER LOCK_FD``: run one job to its end.

Standard input holds one JSON line with the values of secret environment variables, then ends.

A watchdog process is the supervisor's parent and does nothing but wait for its end. Whatever a killed supervisor leaves
behind becomes its child on Linux, also a daemon that has left its session and cleared its environment; where there is
no such adoption the job's mark finds the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from distdl_jupyter.core import events, limits, locks, signals
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.node import processes
from distdl_jupyter.supervisor.resume import can_attach
from distdl_jupyter.supervisor.run import Supervisor

#: Files that may always be opened to write why a job has ended.
_SPARE = 3
#: Signals that stop the job; the watchdog passes them on.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Read what the submitter has sent and run the job."""
    signals.reset()
    os.set_inheritable(int(sys.argv[2]), False)  # noqa: FBT003 - the lock stays here, ranks must not hold it
    supervise(JobFolder(Path(sys.argv[1])), json.loads(sys.stdin.readline() or "{}"))


def supervise(folder: JobFolder, secret_variables: Mapping[str, str]) -> None:
    """Set up signals and the watchdog, run the supervisor, and report the end of the job.

    The calling process has the job's lock and its standard output goes into the job's supervisor.log.
    """
    spare: list[int] = []
    try:
        spare.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE))
        if not can_attach(folder):
            _start_watchdog(folder.id)
        locks.sign(folder.lock)
        processes.adopt_orphans()
        supervisor = Supervisor(folder, secret_variables, signals.wake_on_child())
    except Exception as error:
        _fail_fast(folder, error, spare)
        raise
    for number in _FORWARDED:
        signal.signal(number, lambda *_: supervisor.interrupt())
    _run(supervisor, folder, spare)
    supervisor.announce_end()


def _run(supervisor: Supervisor, folder: JobFolder, spare: list[int]) -> None:
    try:
        supervisor.run()
    except Exception as error:  # noqa: BLE001 - printed as Python prints what is not caught, without secrets
        sys.stderr.write(supervisor.redactor.text(traceback.format_exc()))
        _fail_fast(folder, error, spare)
        raise SystemExit(1) from None


def _fail_fast(folder: JobFolder, error: Exception, spare: list[int]) -> None:
    """End a job whose supervisor lacks processes, files or memory; the caller holds the job's lock.

    A job that survives its supervisor waits for the next one. What the recorder had not written yet is lost.
    """
    for descriptor in spare:
        os.close(descriptor)
    remedy = limits.remedy(error)
    if not remedy or can_attach(folder):
        return
    with contextlib.suppress(OSError):
        processes.kill_job(folder.id, orphans=True)
        view = JobView.of(folder.spec())
        for batch, _ in events.batches(folder.events):
            for event in batch:
                view.apply(event)
        if not view.state.ended:
            reason = getattr(error, "strerror", None) or str(error) or "out of memory"
            writer = events.EventWriter(folder.events)
            writer.write("state", state=State.FAILED.value, reason=f"The job's supervisor failed: {reason}. {remedy}")
            writer.close()


# the watchdog -----------------------------------------------------------------------------------


def _start_watchdog(job_id: str) -> None:
    """Continue in a child of this process, which stays as its watchdog and ends with it. Raises OSError.

    Call it before any other work: the child keeps the descriptors, above all the job's lock.
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
        from distdl_jupyter.node import run_dir  # most supervisors end by themselves

        processes.kill_job(job_id, timeout=10.0, orphans=True)
        with contextlib.suppress(OSError):
            run_dir.sweep(job_id)
    os._exit(0)


if __name__ == "__main__":
    main()

"""``python -m distdl_jupyter.supervisor JOB_FOLDER LOCK_FD``: run one job to its end.

Standard input contains one JSON line with the values of secret environment variables.

A watchdog process is the supervisor's parent and only waits for it to exit. On Linux the watchdog is a child subreaper:
it adopts every process that a killed supervisor leaves behind, even daemons with their own session and an empty
environment. On other systems the job's mark identifies these processes.
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

from distdl_jupyter.core import events, files, logfile, machine
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.node import processes
from distdl_jupyter.supervisor.resume import can_attach
from distdl_jupyter.supervisor.run import Supervisor

#: Number of file descriptors reserved for recording why a job ended.
_SPARE_DESCRIPTORS = 3
#: Signals that stop the job; the watchdog forwards them.
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Read the secrets from the submitter and run the job."""
    machine.reset_signals()
    os.set_inheritable(int(sys.argv[2]), False)  # noqa: FBT003 - the lock stays here, ranks must not hold it
    supervise(JobFolder(Path(sys.argv[1])), json.loads(sys.stdin.readline() or "{}"))


def supervise(folder: JobFolder, secret_variables: Mapping[str, str]) -> None:
    """Set up signals and the watchdog, run the supervisor, and report the end of the job.

    The caller holds the job's lock, and its standard output is the job's supervisor.log.
    """
    spare_fds: list[int] = []
    supervisor = None
    try:
        spare_fds.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE_DESCRIPTORS))
        if not can_attach(folder):
            _start_watchdog(folder.id)
        files.sign(folder.lock)
        processes.adopt_orphans()
        supervisor = Supervisor(folder, secret_variables, machine.wake_on_child())
        for number in _FORWARDED_SIGNALS:
            signal.signal(number, lambda *_, job=supervisor: job.interrupt())
        supervisor.run()
    except Exception as error:
        if supervisor is not None:  # printed like an uncaught exception, with secrets masked
            sys.stderr.write(supervisor.redactor.mask_text(traceback.format_exc()))
        _record_failure(folder, error, spare_fds)
        if supervisor is not None:
            raise SystemExit(1) from None
        raise
    supervisor.announce_end()


def _record_failure(folder: JobFolder, error: Exception, spare_fds: list[int]) -> None:
    """End a job whose supervisor ran out of processes, files or memory; the caller holds the job's lock.

    A job that survives its supervisor waits for a new one. Events that the recorder had not written yet are lost.
    """
    for descriptor in spare_fds:
        os.close(descriptor)
    remedy = machine.find_remedy(error)
    if not remedy or can_attach(folder):
        return
    with contextlib.suppress(OSError):
        processes.kill_job(folder.id, orphans=True)
        view = JobView.from_spec(folder.read_spec())
        for batch, _ in events.read_batches(folder.events):
            for event in batch:
                view.apply(event)
        if not view.state.ended:
            reason = getattr(error, "strerror", None) or str(error) or "out of memory"
            writer = logfile.EventWriter(folder.events)
            writer.write("state", state=State.FAILED.value, reason=f"The job's supervisor failed: {reason}. {remedy}")
            writer.close()


def _start_watchdog(job_id: str) -> None:
    """Fork: continue in the child; the parent stays as its watchdog and never returns. Raises OSError.

    Call this before any other work. The child inherits the file descriptors, including the job's lock.
    """
    processes.adopt_orphans()
    supervisor = os.fork()
    if supervisor == 0:
        os.setsid()
        return
    try:
        for number in _FORWARDED_SIGNALS:
            signal.signal(number, lambda number, _: processes.send_signal([supervisor], number))
        # Close the inherited descriptors, so that the job's lock is released when the supervisor exits.
        os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") > 0 else 65_536)
        _, status = os.waitpid(supervisor, 0)
        if status != 0:
            from distdl_jupyter.node import run_dir  # not needed when a supervisor exits normally

            processes.kill_job(job_id, timeout=10.0, orphans=True)
            run_dir.sweep(job_id)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()

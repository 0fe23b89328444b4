"""``python -m distdl_jupyter.supervisor JOB_FOLDER LOCK_FD``: run one job to its end.

Standard input holds one JSON line with the values of secret environment variables, then ends.
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

from distdl_jupyter.core import locks, signals
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node.processes import adopt_orphans
from distdl_jupyter.supervisor import watchdog
from distdl_jupyter.supervisor.resume import can_attach
from distdl_jupyter.supervisor.run import Supervisor

#: Files that may always be opened to write why a job has ended.
_SPARE = 3


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
            watchdog.start(folder.id)
        locks.sign(folder.lock)
        adopt_orphans()
        supervisor = Supervisor(folder, secret_variables, signals.wake_on_child())
    except Exception as error:
        _fail_fast(folder, error, spare)
        raise
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
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
    """End a job whose supervisor lacks what it needs; one that survives its supervisor waits for the next one."""
    for descriptor in spare:
        os.close(descriptor)
    if not can_attach(folder):
        with contextlib.suppress(OSError):
            watchdog.fail_fast(folder, error)


if __name__ == "__main__":
    main()

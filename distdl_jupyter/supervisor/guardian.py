"""The last belt: a tiny process that ends a job's ranks when its supervisor was killed.

It is forked first, holds nothing but the reading end of a pipe, and does nothing until that pipe ends. A supervisor
that ends in order says goodbye; one that was killed cannot, and then every process with the job's mark is killed.
"""

from __future__ import annotations

import os
import signal

from distdl_jupyter.clusters import processes

_GOODBYE = b"goodbye"


class Guardian:
    """The supervisor's end of the pipe."""

    def __init__(self, job_id: str) -> None:
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _guard(read, job_id)
        os.close(read)
        processes.spared.add(self._pid)

    def dismiss(self) -> None:
        """Say goodbye and wait until the guardian has gone."""
        os.write(self._write, _GOODBYE)
        os.close(self._write)
        os.waitpid(self._pid, 0)


def _guard(read: int, job_id: str) -> None:
    """Run in the forked child: never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Everything inherited goes, above all the job's lock: it must be free when the supervisor is gone.
        os.dup2(read, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") > 0 else 65_536)
        said = b""
        while data := os.read(3, 64):
            said += data
        if said != _GOODBYE:
            processes.kill_all(job_id, patience=10.0)
    finally:
        os._exit(0)

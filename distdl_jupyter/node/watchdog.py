"""The last belt on a host: a tiny process that ends what is left when the agent itself was killed.

It is forked before the agent does anything, holds nothing but the reading end of a pipe, and does nothing until that
pipe ends. An agent that ends in order says goodbye.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.node import data_cache, processes, workdir

_GOODBYE = "goodbye"


class Watchdog:
    """The agent's end of the pipe. Raises OSError when no process can be forked."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _watch(read)
        os.close(read)

    def watch(self, marks: Mapping[str, str], run: Path, copied: Path | None, base: str = "") -> None:
        """Let it know what to end and to remove: marked processes, the private folder, the copied one, the data."""
        self._say({"marks": dict(marks), "run": str(run), "copied": str(copied) if copied else None, "base": base})

    def dismiss(self) -> None:
        """Say goodbye and wait until it has gone."""
        self._say(_GOODBYE)
        os.close(self._write)
        os.waitpid(self.pid, 0)

    def _say(self, content: Any) -> None:
        os.write(self._write, json.dumps(content).encode() + b"\n")


def _watch(read: int) -> None:
    """Run in the forked child: never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _let_go_of_all_but(read)
        said = [json.loads(line) for line in _all(3).splitlines() if line]
        if said and said[-1] != _GOODBYE:
            _end(said[-1])
    finally:
        os._exit(0)


def _let_go_of_all_but(read: int) -> None:
    """Keep one descriptor, as number 3: whoever holds the connection's streams keeps it open."""
    os.dup2(read, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.closerange(4, 65_536)


def _all(fd: int) -> str:
    said = b""
    while content := os.read(fd, 4096):
        said += content
    return said.decode()


def _end(job: dict[str, Any]) -> None:
    processes.kill_all(lambda: processes.of_job(job["marks"]), timeout=10.0)
    shutil.rmtree(job["run"], ignore_errors=True)
    data_cache.forget(job["marks"]["DISTDL_JOB_ID"], job["base"] or workdir.DEFAULT_BASE)
    if job["copied"]:
        workdir.abandon(Path(job["copied"]))

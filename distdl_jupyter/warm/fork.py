"""Forking a supervisor into what it starts: a rank, or a service of the backend."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

from distdl_jupyter.node import processes, spawn
from distdl_jupyter.node.spawn import Program
from distdl_jupyter.warm import child, preconditions, process_end, threads
from distdl_jupyter.warm.preload import Prepared
from distdl_jupyter.worker.watch import shutdown

#: ``python -P -m MODULE ARGUMENTS``: the one form of a command line that is understood here.
_BEFORE = ("-P", "-m")
#: Seconds after which the system no longer counts a thread that was joined.
_JOINED_SECONDS = 0.1


class Forked:
    """A forked child of this process, as ``subprocess.Popen`` shows one."""

    def __init__(self, pid: int, stdin: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code when it has ended."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while (code := self._reap(0 if until is None else os.WNOHANG)) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return code

    def kill(self) -> None:
        """Send KILL."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:
                pid, status = self.pid, 0  # somebody else has waited for it, as for a Popen
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Forker:
    """What ``node.spawn.fork`` is in a supervisor that was forked from a template."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def __call__(self, program: Program) -> Forked | None:
        """Fork into a program; None when it has to be started as a new interpreter."""
        if reason := self._refusal(program):
            spawn.reasons.append(reason)
            return None
        given = os.pipe() if program.stdin == subprocess.PIPE else None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            process_end.run(lambda: self._become(program, given[0] if given else -1))
        if given is None:
            return Forked(pid, None)
        os.close(given[0])
        return Forked(pid, os.fdopen(given[1], "wb"))

    def _refusal(self, program: Program) -> str:
        """Return why this program cannot be forked, "" when it can; that it cannot be started at all is told later."""
        arguments, environment = program.arguments, program.environment
        if os.path.abspath(arguments[0]) != os.path.abspath(sys.executable) or tuple(arguments[1:3]) != _BEFORE:  # noqa: PTH100 - links are kept
            return "it uses a different Python"
        if not _can_enter(program.directory):
            return "its working directory is not accessible"
        if "DISTDL_RANK" in environment and threads.wanted(environment) is None:
            return "its number of threads cannot be set after a fork"
        if name := self._prepared.differing(environment):
            return f"the value of its environment variable {name} differs from that of the template"
        # What was injected into the template lives by its end, which a forked process does not have.
        if any(environment.get(name) for name in shutdown.INJECTED):
            return "a library is injected into it (LD_PRELOAD)"
        return "the supervisor has started threads" if _has_threads() else ""

    def _become(self, program: Program, stdin: int) -> None:
        environment = program.environment
        if stdin < 0:
            stdin = os.open(os.devnull, os.O_RDONLY)
        child.settle((stdin, program.stdout, program.stderr))
        child.replace_environment(environment, set_by_imports=self._prepared.set_by_imports)
        if program.directory:
            os.chdir(program.directory)
        self._show(program.arguments, environment)
        spawn.fork = None
        child.be_another(program.arguments)
        threads.allow(environment)
        sys.argv[:] = ["-m", *program.arguments[4:]]
        runpy.run_module(program.arguments[3], run_name="__main__", alter_sys=True)

    def _show(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        rank = environment.get("DISTDL_RANK")
        who = f"rank {rank} of {environment[processes.MARK]}" if rank else f"service of {environment[processes.MARK]}"
        self._prepared.room.say([*arguments[1:], f"({who})"], f"{processes.MARK}={environment[processes.MARK]}")


def _has_threads() -> bool:
    """Say whether there are threads; the system still counts one for a moment after it was joined."""
    until = time.monotonic() + _JOINED_SECONDS
    while preconditions.threads() > 1:
        if time.monotonic() > until:
            return True
        time.sleep(0.001)
    return False


def _can_enter(directory: str | None) -> bool:
    return not directory or os.access(directory, os.X_OK)

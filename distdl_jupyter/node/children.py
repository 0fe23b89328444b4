"""The processes that the agent has started itself: their streams, and each end exactly once.

Each process leads a session of its own, so that a signal reaches it with its children. A supervisor that was forked
from a warm template may fork what it starts: its creator sets ``fork``. Nothing here knows when that is safe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from distdl_jupyter.node import headroom, processes
from distdl_jupyter.node.channels import Source


class Process(Protocol):
    """A child of this process, as ``subprocess.Popen`` shows it."""

    pid: int
    stdin: IO[bytes] | None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None before ``poll`` or ``wait`` has seen the end."""

    def poll(self) -> int | None:
        """Return the exit code when it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Send KILL."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is to run in a session of its own.

    ``stdin`` is subprocess.PIPE or DEVNULL, the others are descriptors.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    directory: str | None = None


#: Forks this process into a program, or returns None: the program has to be started as a new interpreter.
fork: Callable[[Program], Process | None] | None = None
#: Why programs were not forked although others were, each the end of a sentence; the reader empties the list.
reasons: list[str] = []
#: The notice of a job whose ranks were forked.
WARM = "Warm start: imports are already loaded."


def start(program: Program) -> Process:
    """Fork a program where that is safe, else start a new interpreter. Raises OSError."""
    if fork is not None and (forked := fork(program)) is not None:
        return forked
    return subprocess.Popen(
        program.arguments,
        stdin=program.stdin,
        stdout=program.stdout,
        stderr=program.stderr,
        env=program.environment,
        cwd=program.directory,
        start_new_session=True,
    )


# all of them ---------------------------------------------------------------------------------------


#: The job's interpreter in a command line.
PYTHON = "{python}"
#: Seconds after the exit in which the last output is awaited while a child of the process holds the stream open.
_LINGER = 1.0


#: Kinds of processes. A process is named by its kind and a number; that of a rank is the rank.
RANK, SERVICE, LAUNCHER, SHELL, DATA = "rank", "service", "launcher", "shell", "data"


class ProcessSpec(NamedTuple):
    """One process to start. ``out`` and ``err`` are channels, the same one for both streams in one.

    ``open_input`` gives it a standard input that ends with the job, instead of an empty one. ``python`` is the
    interpreter for ``{python}``, "" for the job's.
    """

    kind: str
    process: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str | None
    out: int
    err: int
    open_input: bool
    python: str = ""


def parse_spec(fields: Mapping[str, Any]) -> ProcessSpec:
    """Read one process of a request. Raises KeyError, TypeError and ValueError for anything else."""
    argv = tuple(str(argument) for argument in fields["argv"])
    if not argv:
        raise ValueError("The command line is empty.")
    environment = {str(name): str(value) for name, value in fields.get("environment", {}).items()}
    out = int(fields["out"])
    return ProcessSpec(
        str(fields.get("kind") or RANK),
        int(fields["process"]),
        argv,
        environment,
        fields.get("directory") or None,
        out,
        int(fields.get("err", out)),
        bool(fields.get("open_input")),
        str(fields.get("python") or ""),
    )


class Channels(Protocol):
    """Where the output of processes goes."""

    def open(self, channel: int) -> tuple[int, Source | None]:
        """Return a descriptor to write to, and what reads it where that is done here."""

    def add(self, fd: int, channel: int) -> Source | None:
        """Read ``fd`` from now on, until it ends."""

    def drain_all(self) -> None:
        """Pass on what was written by now."""

    def drop(self, source: Source) -> None:
        """Close a source and tell nothing."""

    def discard_all(self) -> None:
        """Discard what was written by now: the supervisor is gone."""


@dataclass(slots=True, eq=False)
class Child:
    """A started process; ``reported`` when the supervisor knows of its end."""

    kind: str
    number: int
    popen: Process
    sources: tuple[Source, ...]
    open_input: bool
    #: Its GPUs as CUDA knows them.
    gpus: str = ""
    ended_at: float | None = None
    reported: bool = False


class NotStarted(Exception):
    """A process could not be started; the text says which and why."""


class Children:
    """All processes that were started here. ``python`` is the job's interpreter."""

    def __init__(self, channels: Channels, python: str = "") -> None:
        self._channels = channels
        self._python = python or sys.executable
        self._children: list[Child] = []
        self._memory = headroom.counters()

    def start(self, programs: Sequence[ProcessSpec]) -> dict[int, int]:
        """Start all processes or none: {process: pid}. Raises NotStarted."""
        begun: list[Child] = []
        try:
            for program in programs:
                begun.append(self._start(program))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._undo(begun)
            raise NotStarted(f"Cannot start {program.argv[0]}: {_reason(error)}.") from error
        self._children += begun
        return {child.number: child.popen.pid for child in begun}

    def _start(self, program: ProcessSpec) -> Child:
        argv = [(program.python or self._python) if argument == PYTHON else argument for argument in program.argv]
        opened = [self._channels.open(channel) for channel in dict.fromkeys((program.out, program.err))]
        sources = tuple(source for _, source in opened if source is not None)
        try:
            popen = start(
                Program(
                    arguments=[_program(argv[0], self._python, program.environment), *argv[1:]],
                    environment=program.environment,
                    stdin=subprocess.PIPE if program.open_input else subprocess.DEVNULL,
                    stdout=opened[0][0],
                    stderr=opened[-1][0],
                    directory=program.directory,
                )
            )
        except BaseException:
            for source in sources:
                self._channels.drop(source)
            raise
        finally:
            for fd, _ in opened:
                os.close(fd)
        gpus = program.environment.get("CUDA_VISIBLE_DEVICES", "")
        return Child(program.kind, program.process, popen, sources, program.open_input, gpus)

    def feed(self, kind: str, text: str) -> None:
        """Write to the standard input of the process of a kind; it may wait. An ended one reads nothing."""
        for child in self._children:
            if child.kind == kind and child.open_input and child.popen.stdin is not None:
                with contextlib.suppress(BrokenPipeError, ValueError):
                    child.popen.stdin.write(text.encode())
                    child.popen.stdin.flush()

    def _undo(self, begun: Sequence[Child]) -> None:
        for child in begun:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.popen.pid, 9)
            child.popen.wait()
            for source in child.sources:
                self._channels.drop(source)

    def ended(self, *, full: bool) -> list[dict[str, Any]]:
        """Return the ends since the last call, as fields of messages; all data of these processes was passed on.

        While the outbox is ``full``, a process with unread output has not ended yet.
        """
        exits, now = [], time.monotonic()
        for child in self._children:
            if child.reported or child.popen.poll() is None:
                continue
            child.ended_at = now if child.ended_at is None else child.ended_at
            silent = not any(source.open for source in child.sources)
            if silent or (now - child.ended_at > _LINGER and not full):
                child.reported = True
                self._channels.drain_all()
                exits.append(self._end(child))
        return exits

    def _end(self, child: Child) -> dict[str, Any]:
        returncode = child.popen.wait()
        code, name = (returncode, None) if returncode >= 0 else (None, processes.signal_name(-returncode))
        evidence = self.evidence_of_kill() if name == "KILL" else ""
        return {"kind": child.kind, "process": child.number, "code": code, "signal": name, "evidence": evidence}

    def evidence_of_kill(self) -> str:
        """Return one sentence when the kernel has killed for lack of memory since the start, else ""."""
        return headroom.evidence(self._memory)

    @property
    def draining(self) -> bool:
        """Whether a process has ended and its last output is still awaited."""
        return any(child.ended_at is not None and not child.reported for child in self._children)

    @property
    def unreported(self) -> bool:
        """Whether the end of a process that is not a service has still to be reported."""
        return any(not child.reported and not child.open_input for child in self._children)

    @property
    def any_started(self) -> bool:
        """Whether a process was ever started here."""
        return bool(self._children)

    def running(self) -> list[Child]:
        """Return those that have not ended."""
        return [child for child in self._children if child.popen.poll() is None]

    def close(self) -> None:
        """End the inputs and reap the zombies of all that have been killed."""
        for child in self._children:
            if child.popen.stdin is not None:
                with contextlib.suppress(OSError):
                    child.popen.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.popen.wait(1.0)

    def reap_adopted(self) -> None:
        """Reap the zombies of orphans that became this process's children.

        No other thread may wait for a child of this process meanwhile.
        """
        known = {child.popen.pid: child for child in self._children}
        with contextlib.suppress(ChildProcessError):
            while (zombie := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if zombie.si_pid in known:
                    known[zombie.si_pid].popen.poll()
                else:
                    os.waitpid(zombie.si_pid, os.WNOHANG)


def _program(name: str, python: str, environment: Mapping[str, str]) -> str:
    """Return the path of a bare name: beside the interpreter first, then on the process's PATH."""
    if "/" in name:
        return name
    beside = Path(python).parent / name
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is None:
        raise FileNotFoundError(2, "no such program next to its Python or on its PATH")
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return str(error) or type(error).__name__

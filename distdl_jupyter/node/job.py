"""Start, find, signal and stop the processes of one job on this host, and manage its folders.

Each process leads its own session, so that a signal reaches it with its children, and its exit is reported exactly
once. A supervisor that was forked from a warm template may fork its programs instead of starting them; its creator then
sets ``fork``. This module does not decide when that is safe, and does not know the wire format.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from distdl_jupyter.node import data_cache, devices, files, headroom, processes, run_dir
from distdl_jupyter.node.channels import Channels, ChannelSource
from distdl_jupyter.node.files import Workdir
from distdl_jupyter.node.run_dir import Pipes

if TYPE_CHECKING:
    from distdl_jupyter.node.resources import Sampler

#: Types of processes. A type and a number identify a process; the number of a rank is its rank.
RANK, SERVICE, LAUNCHER, SHELL, DATA = "rank", "service", "launcher", "shell", "data"
#: Placeholder for the job's interpreter in a command line.
PYTHON = "{python}"
_SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
#: Seconds to wait after an exit for the last output while a child of the process keeps the stream open.
_LINGER = 1.0
#: Seconds between TERM and KILL when the job has lost its supervisor.
_GRACE = 2.0
#: Maximum fraction of the time to spend on searching for processes.
_SHARE = 0.02


class ChildProcess(Protocol):
    """A child of this process, with the interface of ``subprocess.Popen``."""

    pid: int
    stdin: IO[bytes] | None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None until ``poll`` or ``wait`` has detected the exit."""

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return its code. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Send KILL."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run in its own session.

    ``stdin`` is subprocess.PIPE or DEVNULL; ``stdout`` and ``stderr`` are descriptors.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    directory: str | None = None


#: Forks this process into a program, or returns None if a new interpreter has to be started.
fork: Callable[[Program], ChildProcess | None] | None = None
#: Why some programs could not be forked, each the end of a sentence; the reader clears the list.
reasons: list[str] = []
#: The notice of a job whose ranks were forked.
WARM = "Warm start: imports are already loaded."


def start(program: Program) -> ChildProcess:
    """Fork a program if that is safe, else start a new interpreter. Raises OSError."""
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


# the processes of a job ----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Child:
    """A started process; ``reported`` once its exit was reported to the supervisor."""

    kind: str
    number: int
    popen: ChildProcess
    sources: tuple[ChannelSource, ...]
    open_input: bool
    #: Its CUDA_VISIBLE_DEVICES.
    gpus: str = ""
    ended_at: float | None = None
    reported: bool = False


class NotStarted(Exception):
    """A process could not be started; the message names it and the cause."""


class Job:
    """The processes and folders of one job on this host.

    ``spared`` are the pids of the agent's own processes, ``python`` is the job's interpreter.
    """

    def __init__(
        self, name: str, workdir: Workdir, channels: Channels, spared: Sequence[int], base: str = "", python: str = ""
    ) -> None:
        self.name = name
        self._channels = channels
        self._python = python or sys.executable
        self._children: list[Child] = []
        self._memory = headroom.counters()
        self.workdir = workdir
        self.base = base
        self.pipes = Pipes(name)
        self._spared = {*spared, os.getpid()}
        #: Whether a signal to its processes was requested.
        self.signaled = False
        self._count, self._count_until = 0, 0.0
        #: The ranks' processes that were warned of the job's end.
        self._warned: set[int] = set()
        self._sampler: Sampler | None = None
        #: The GPUs of ranks that a launcher starts.
        self._given_gpus: dict[int, str] = {}

    @property
    def marks(self) -> dict[str, str]:
        """The environment variables that mark every process of the job."""
        return {processes.MARK: self.name, "DISTDL_PIPES": str(self.pipes.folder)}

    # start ------------------------------------------------------------------------------------

    def start(self, programs: Sequence[Mapping[str, Any]]) -> dict[int, int]:
        """Start all processes or none; return {process: pid}. Raises NotStarted, and KeyError for a missing field.

        ``out`` and ``err`` are channels, by default one for both streams. ``open_input`` gives a process a standard
        input that ends with the job, instead of an empty one; ``python`` is the interpreter for ``{python}``.
        """
        self._count_until = 0.0
        begun: list[Child] = []
        try:
            for program in programs:
                begun.append(self._start(program))
        except Exception as error:
            self._undo(begun)
            if isinstance(error, (OSError, ValueError, subprocess.SubprocessError)):
                raise NotStarted(f"Cannot start {program['argv'][0]}: {_reason(error)}.") from error
            raise
        self._children += begun
        return {child.number: child.popen.pid for child in begun}

    def _start(self, program: Mapping[str, Any]) -> Child:
        python, open_input = program.get("python") or self._python, bool(program.get("open_input"))
        argv = [python if argument == PYTHON else str(argument) for argument in program["argv"]]
        environment = self._environment(program.get("environment", {}))
        out = int(program["out"])
        opened = [self._channels.open(channel) for channel in dict.fromkeys((out, int(program.get("err", out))))]
        sources = tuple(source for _, source in opened if source is not None)
        try:
            popen = start(
                Program(
                    arguments=[_program(argv[0], self._python, environment), *argv[1:]],
                    environment=environment,
                    stdin=subprocess.PIPE if open_input else subprocess.DEVNULL,
                    stdout=opened[0][0],
                    stderr=opened[-1][0],
                    directory=program.get("directory") or None,
                )
            )
        except BaseException:
            for source in sources:
                self._channels.drop(source)
            raise
        finally:
            for fd, _ in opened:
                os.close(fd)
        gpus = environment.get("CUDA_VISIBLE_DEVICES", "")
        return Child(str(program.get("kind") or RANK), int(program["process"]), popen, sources, open_input, gpus)

    def feed(self, kind: str, text: str) -> None:
        """Write to the standard input of the process of this type. May block; does nothing if it has exited."""
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

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment of a process, including ``variables``."""
        inherited = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        paths = [_package_root(), *(path for path in inherited.split(os.pathsep) if path != _package_root())]
        path = os.pathsep.join(path for path in paths if path)
        login = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "DISTDL_"))}
        return {**login, **variables, **self._gpu_variables(variables), **self.marks, "PYTHONPATH": path}

    def _gpu_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the GPU variables with their CUDA identifiers on this host."""
        if not variables.get("CUDA_VISIBLE_DEVICES"):
            return {}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return devices.with_cuda_identifiers(variables, devices.visible())
        return {}

    def open_pipes(self, ranks: Sequence[Mapping[str, Any]], variables: Sequence[Any]) -> None:
        """Create named pipes for ranks that a launcher will start. Raises KeyError and OSError."""
        # A launcher may set another TMPDIR, which its ranks would inherit.
        shared = {"TMPDIR": tempfile.gettempdir()}
        whole = [{**shared, **rank_variables, **self._gpu_variables(rank_variables)} for rank_variables in variables]
        self.pipes.write_variables(whole)
        self._given_gpus = {
            rank: rank_variables.get("CUDA_VISIBLE_DEVICES", "") for rank, rank_variables in enumerate(whole)
        }
        for rank in ranks:
            out, err = self.pipes.for_rank(int(rank["rank"]))
            self._channels.add(out, int(rank["out"]))
            self._channels.add(err, int(rank["err"]))

    # watch ------------------------------------------------------------------------------------

    def ended(self, *, full: bool) -> list[dict[str, Any]]:
        """Return the exits since the last call, as message fields; all output of these processes was forwarded.

        While the outbox is ``full``, a process with unread output does not count as exited.
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
        """Return one sentence if memory ran out since the start (see ``headroom.evidence``), else ""."""
        return headroom.evidence(self._memory)

    @property
    def draining(self) -> bool:
        """Whether the last output of an exited process is still expected."""
        return any(child.ended_at is not None and not child.reported for child in self._children)

    @property
    def unreported(self) -> bool:
        """Whether the exit of a process other than a service is still unreported."""
        return any(not child.reported and not child.open_input for child in self._children)

    @property
    def any_started(self) -> bool:
        """Whether a process was ever started here."""
        return bool(self._children)

    def running(self) -> list[Child]:
        """Return the processes that have not exited."""
        return [child for child in self._children if child.popen.poll() is None]

    def alive(self) -> set[int]:
        """Return every living process of the job, except its services, which end with it."""
        running = processes.table()
        services = [child.popen.pid for child in self.running() if child.open_input]
        return self._all(running) - processes.descendants(services, running)

    def stuck(self) -> list[int]:
        """Return the processes that signals cannot reach, including started ones of which only threads remain."""
        return processes.stuck({*self.alive(), *(child.popen.pid for child in self.running())})

    def everything(self) -> set[int]:
        """Return every living process of the job."""
        return self._all(processes.table())

    def drain(self) -> str:
        """Forward all output, and return a sentence if memory ran out, else ""."""
        self._channels.drain_all()
        return self.evidence_of_kill()

    def _all(self, running: dict[int, processes.ProcessEntry]) -> set[int]:
        return processes.of_job(self.marks, running, self._spared, orphans=True)

    def count(self) -> int:
        """Return the number of living processes, cached to limit the time spent on the search."""
        now = time.monotonic()
        if self.any_started and now >= self._count_until:
            self._count = len(self.alive())
            self._count_until = now + (time.monotonic() - now) / _SHARE
        return self._count

    def sample_due(self, now: float) -> float:
        """Return the seconds until the next resource sample; inf before any rank was started."""
        if not self.any_started:
            return math.inf
        if self._sampler is None:
            from distdl_jupyter.node.resources import Sampler  # lazy: must not delay ranks

            self._sampler = Sampler()
        return self._sampler.due(now)

    def sample(self) -> dict[str, Any] | None:
        """Return the resource usage of ranks and this host (see ``node.resources``), None until a sample is due."""
        if self.sample_due(time.monotonic()) > 0 or self._sampler is None:
            return None
        running = self.running()
        ranks = {child.number: child for child in running if child.kind == RANK}
        launchers = [child.popen.pid for child in running if child.kind != RANK and not child.open_input]
        gpus = {**self._given_gpus, **{rank: child.gpus for rank, child in ranks.items()}}
        return self._sampler.sample({rank: child.popen.pid for rank, child in ranks.items()}, launchers, gpus)

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

    # signal and stop --------------------------------------------------------------------------

    def signal(self, name: str, to: str) -> int:
        """Signal the ``"ranks"`` with their children, or ``"all"`` except services; return the number of processes.

        Raises KeyError for an unknown signal, ValueError for an unknown addressee.
        """
        number = _SIGNALS[name]
        self.signaled = True
        if to == "ranks":
            return self._signal_ranks(number)
        if to != "all":
            raise ValueError(f"Unknown target {to!r}. Use 'ranks' or 'all'.")
        pids = self.alive()
        processes.send(pids, number)
        return len(pids)

    def _signal_ranks(self, number: int) -> int:
        rank_pids = [child.popen.pid for child in self.running() if child.kind == RANK]
        for pid in rank_pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        if rank_pids:
            return len(rank_pids)
        # A launcher and its daemons would end the job at once; let the ranks clean up first.
        running = processes.table()
        pids = processes.descendants(processes.workers(self._all(running)), running)
        processes.send(pids, number)
        return len(pids)

    def warn(self) -> int:
        """Send USR1 once to each rank that handles it; return the number of ranks signaled."""
        rank_pids = [child.popen.pid for child in self.running() if child.kind == RANK]
        ranks = rank_pids or processes.workers(self._all(processes.table()))
        pids = [pid for pid in ranks if pid not in self._warned and processes.catches(pid, signal.SIGUSR1)]
        self._warned.update(pids)
        processes.send(pids, signal.SIGUSR1)
        return len(pids)

    def kill(self) -> int:
        """Kill everything and wait for the exits; return the number of processes."""
        killed: set[int] = set()

        def left() -> set[int]:
            pids = self.everything()
            # Do not wait for killed processes that are blocked in the kernel; they exit when it returns.
            rest = pids.difference(processes.stuck(pids & killed))
            killed.update(pids)
            return rest

        processes.kill_all(left, meanwhile=self._drain)
        return len(killed)

    def give_up(self) -> None:
        """Stop everything without a supervisor: TERM, then KILL."""
        processes.send(self.everything(), signal.SIGTERM)
        until = time.monotonic() + _GRACE
        while self.everything() and time.monotonic() < until:
            self._drain()
            time.sleep(0.05)
        self.kill()

    def _drain(self) -> None:
        """Empty full pipes, and reap zombies."""
        self._channels.discard_all()
        self.running()

    def clear(self, remove: Callable[[Path], None] | None) -> None:
        """Reap killed processes, and remove the private folder and, with ``remove``, the copied one."""
        for child in self._children:
            if child.popen.stdin is not None:
                with contextlib.suppress(OSError):
                    child.popen.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.popen.wait(1.0)
        self.pipes.close()
        self._forget_data()
        if self.workdir.copied and remove is not None:
            remove(self.workdir.folder)

    def _forget_data(self) -> None:
        data_cache.forget(self.name, self.base or files.DEFAULT_BASE)


def sweep(name: str, base: str) -> int:
    """Kill the remaining processes of a job and remove its folders; return the number of processes."""
    pids = processes.kill_job(files.plain(name))
    run_dir.sweep(name)
    for folder in list(files.of_job(name, base)):
        files.abandon(folder)
    data_cache.forget(name, base or files.DEFAULT_BASE)
    return len(pids)


def _package_root() -> str:
    """Return the folder from which this package was imported, so that ranks use the same version."""
    return str(Path(__file__).resolve().parents[2])


def _program(name: str, python: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program name: next to the interpreter first, then on the process's PATH."""
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

"""Start, find, signal and stop the processes of one job on this host, and manage its folders.

Each process leads its own session, so a signal also reaches its children. Each exit is reported exactly once. A
supervisor that was forked from a warm template may fork its programs instead of starting them; its creator then sets
``fork``. This module does not decide when that is safe, and does not know the wire format.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.node import data_cache, devices, files, processes, run_dir
from distdl_jupyter.node.channels import Channels, ChannelSource
from distdl_jupyter.node.files import Workdir
from distdl_jupyter.node.processes import StackRequest
from distdl_jupyter.node.resources import Sampler
from distdl_jupyter.node.run_dir import RunFolder

#: Types of processes. A type and a number identify a process; the number of a rank is its rank.
RANK, SERVICE, LAUNCHER, SHELL, DATA = "rank", "service", "launcher", "shell", "data"
#: Placeholder for the job's interpreter in a command line.
PYTHON = "{python}"
_SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
#: Seconds to wait after an exit for the last output while a child of the process keeps the stream open.
_LINGER_SECONDS = 1.0
#: Seconds between TERM and KILL when the job has lost its supervisor.
_GRACE_SECONDS = 2.0

#: Forks this process into a program, given as for ``subprocess.Popen``; returns an object with the interface of Popen,
#: or None if a new interpreter has to be started.
fork: Callable[[Sequence[str], Mapping[str, Any]], Any] | None = None
#: The reasons why some programs could not be forked, each the end of a sentence. The reader clears the list.
fork_failures: list[str] = []
#: The notice of a job whose ranks were forked.
WARM_NOTICE = "Warm start: imports are already loaded."


@dataclass(slots=True, eq=False)
class Child:
    """A started process; ``is_reported`` once its exit was reported to the supervisor."""

    kind: str
    number: int
    #: A ``subprocess.Popen``, or a forked process with the same interface.
    popen: Any
    sources: tuple[ChannelSource, ...]
    open_input: bool
    #: Its CUDA_VISIBLE_DEVICES.
    gpus: str = ""
    ended_at: float | None = None
    is_reported: bool = False


Fields = Mapping[str, Any]
Reply = dict[str, Any]


class RequestFailed(Exception):
    """A request failed; the message is sent as the error."""


class StartFailed(RequestFailed):
    """A process could not be started; the message names it and the cause."""


class Job:
    """The processes and folders of one job on this host.

    ``ignore`` are the pids of the agent's own processes, ``python`` is the job's interpreter, and ``base`` the folder
    with its staged data (None if another component removes it).
    """

    def __init__(
        self, name: str, workdir: Workdir, channels: Channels, ignore: Sequence[int], base: str | None, python: str = ""
    ) -> None:
        self.name = name
        self._channels = channels
        self._python = python or sys.executable
        self._children: list[Child] = []
        self._oom_kills = devices.count_oom_kills()
        self.workdir = workdir
        self._base = base
        self.run = RunFolder(name)
        self._excluded_pids = {*ignore, os.getpid()}
        #: Whether a signal to its processes was requested.
        self.was_signaled = False
        #: The ranks' processes that were warned of the job's end.
        self._warned_pids: set[int] = set()
        self._sampler: Sampler | None = None
        #: The pending requests for stacks, by rank.
        self._stack_requests: dict[int, StackRequest] = {}
        #: The GPUs of ranks that a launcher starts.
        self._launcher_gpus: dict[int, str] = {}

    @property
    def marks(self) -> dict[str, str]:
        """The environment variables that mark every process of the job."""
        return dict(zip(processes.MARKS, (self.name, str(self.run.path)), strict=True))

    def handle(self, type_: str, fields: Fields) -> Reply:
        """Handle a request of the supervisor (see ``node.agent``) and return the response."""
        handler = getattr(self, f"_on_{type_}", None)
        if handler is None:
            raise RequestFailed(f"Unknown request {type_!r}.")
        return handler(fields) or {}

    # start ------------------------------------------------------------------------------------

    def _on_start(self, fields: Fields) -> Reply:
        """Start all processes or none. Raises StartFailed, and KeyError for a missing field.

        ``out`` and ``err`` are channels, by default one for both streams. ``open_input`` gives a process a standard
        input that ends with the job, instead of an empty one; ``python`` is the interpreter for ``{python}``.
        """
        started: list[Child] = []
        try:
            for program in fields["processes"]:
                started.append(self._start(program))
        except Exception as error:
            for child in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.popen.pid, signal.SIGKILL)
                child.popen.wait()
                for source in child.sources:
                    self._channels.close_source(source, end=False)
            if not isinstance(error, (OSError, ValueError, subprocess.SubprocessError)):
                raise
            reason = str(error) or type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                reason = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
            raise StartFailed(f"Cannot start {program['argv'][0]}: {reason}.") from error
        self._children += started
        return {"pids": {child.number: child.popen.pid for child in started}}

    def _start(self, fields: Mapping[str, Any]) -> Child:
        python, open_input = fields.get("python") or self._python, bool(fields.get("open_input"))
        name, *arguments = [python if argument == PYTHON else str(argument) for argument in fields["argv"]]
        environment = self._build_environment(fields.get("environment", {}))
        folders = str(Path(self._python).parent), environment.get("PATH", os.defpath)
        path = name if "/" in name else shutil.which(name, path=os.pathsep.join(folders))
        if path is None:
            raise FileNotFoundError(2, "not found next to the job's Python or on PATH")
        program = [path, *arguments]
        out = int(fields["out"])
        outputs = [self._channels.open(channel) for channel in dict.fromkeys((out, int(fields.get("err", out))))]
        sources = tuple(source for _, source in outputs if source is not None)
        try:
            options: dict[str, Any] = {
                "stdin": subprocess.PIPE if open_input else subprocess.DEVNULL,
                "stdout": outputs[0][0],
                "stderr": outputs[-1][0],
                "env": environment,
                "cwd": fields.get("directory") or None,
            }
            popen = fork(program, options) if fork is not None and fields.get("kind") != DATA else None
            if popen is None:
                popen = subprocess.Popen(program, start_new_session=True, **options)
        except BaseException:
            for source in sources:
                self._channels.close_source(source, end=False)
            raise
        finally:
            for fd, _ in outputs:
                os.close(fd)
        gpus = environment.get("CUDA_VISIBLE_DEVICES", "")
        return Child(str(fields.get("kind") or RANK), int(fields["process"]), popen, sources, open_input, gpus)

    def feed(self, kind: str, process: int, text: str) -> None:
        """Write to the standard input of a process. May block; does nothing if it has exited."""
        for child in self._children:
            if (child.kind, child.number) == (kind, process) and child.popen.stdin is not None:
                with contextlib.suppress(BrokenPipeError, ValueError):
                    child.popen.stdin.write(text.encode())
                    child.popen.stdin.flush()

    def _build_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment of a process, including ``variables``."""
        package_root = str(Path(__file__).resolve().parents[2])  # so that ranks use this version of the package
        inherited = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
        path = os.pathsep.join([package_root, *(path for path in inherited if path not in ("", package_root))])
        agent_env = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "DISTDL_"))}
        return {**agent_env, **variables, **devices.build_cuda_variables(variables), **self.marks, "PYTHONPATH": path}

    def _on_pipes(self, fields: Fields) -> None:
        """Create named pipes for ranks that a launcher will start. Raises KeyError and OSError."""
        # A launcher may set a different TMPDIR, which its ranks would inherit.
        shared = {"TMPDIR": tempfile.gettempdir()}
        environments = list[dict[str, str]]()
        for rank, variables in enumerate(fields.get("variables", ())):
            environments.append({**shared, **variables, **devices.build_cuda_variables(variables)})
            self._launcher_gpus[rank] = environments[rank].get("CUDA_VISIBLE_DEVICES", "")
        self.run.write("ranks.json", environments)
        for channels in fields["ranks"]:
            for name in ("out", "err"):
                self._channels.add(self.run.open_pipe(int(channels["rank"]), name), int(channels[name]))

    # watch ------------------------------------------------------------------------------------

    def collect_exits(self, *, outbox_is_full: bool) -> list[dict[str, Any]]:
        """Return the exits since the last call, as message fields; all output of these processes was forwarded.

        If the outbox is full, a process with unread output does not count as exited.
        """
        exits, now = [], time.monotonic()
        for child in self._children:
            if child.is_reported or child.popen.poll() is None:
                continue
            child.ended_at = now if child.ended_at is None else child.ended_at
            is_drained = not any(source.is_open for source in child.sources)
            if is_drained or (now - child.ended_at > _LINGER_SECONDS and not outbox_is_full):
                child.is_reported = True
                self._channels.drain_all()
                returncode = child.popen.wait()
                code, name = (returncode, None) if returncode >= 0 else (None, processes.get_signal_name(-returncode))
                evidence = devices.describe_oom_kills(self._oom_kills) if name == "KILL" else ""
                outcome = {"code": code, "signal": name, "evidence": evidence}
                exits.append({"kind": child.kind, "process": child.number, **outcome})
        return exits

    @property
    def needs_polling(self) -> bool:
        """Whether the last output of an exited process or a response with stacks is expected soon."""
        return bool(self._stack_requests) or any(child.ended_at and not child.is_reported for child in self._children)

    @property
    def has_unreported_exits(self) -> bool:
        """Whether a process other than a service has not exited, or its exit has not been reported."""
        return any(not child.is_reported and not child.open_input for child in self._children)

    @property
    def has_started(self) -> bool:
        """Whether a process was ever started here."""
        return bool(self._children)

    def _list_running(self) -> list[Child]:
        return [child for child in self._children if child.popen.poll() is None]

    def _find_pids(self, running: dict[int, processes.ProcessEntry] | None = None) -> set[int]:
        """Return every living process of the job; ``running`` is the process table, if the caller has read it."""
        return processes.find_job_pids(self.marks, running, self._excluded_pids, orphans=True)

    def find_living(self) -> set[int]:
        """Return every living process of the job, except its services, which end with it."""
        running = processes.read_table()
        services = [child.popen.pid for child in self._list_running() if child.open_input]
        return self._find_pids(running) - processes.find_descendants(services, running)

    def _on_alive(self, _fields: Fields) -> Reply:
        running = self.find_living()
        return {"alive": len(running), "workers": len(processes.find_workers(running))}

    def _on_stuck(self, _fields: Fields) -> Reply:
        # The main thread of a process may have exited while other threads are still blocked.
        running = [child.popen.pid for child in self._list_running()]
        return {"pids": processes.find_stuck({*self.find_living(), *running})}

    def _on_drain(self, _fields: Fields) -> Reply:
        self._channels.drain_all()
        return {"evidence": devices.describe_oom_kills(self._oom_kills)}

    def get_sample_delay(self, now: float) -> float:
        """Return the seconds until the next resource sample, or infinity before any rank was started."""
        if not self.has_started:
            return math.inf
        self._sampler = self._sampler or Sampler()
        return self._sampler.due_at - now

    def sample(self) -> dict[str, Any] | None:
        """Return the resource usage of ranks and this host (see ``node.resources``), or None until a sample is due."""
        if self.get_sample_delay(time.monotonic()) > 0 or self._sampler is None:
            return None
        running = self._list_running()
        ranks = {child.number: child for child in running if child.kind == RANK}
        launchers = [child.popen.pid for child in running if child.kind != RANK and not child.open_input]
        gpus = {**self._launcher_gpus, **{rank: child.gpus for rank, child in ranks.items()}}
        return self._sampler.sample({rank: child.popen.pid for rank, child in ranks.items()}, launchers, gpus)

    def _on_stacks(self, fields: Fields) -> None:
        self._stack_requests = {int(rank): StackRequest(self.run.path, int(rank)) for rank in fields["ranks"]}

    def take_stacks(self) -> dict[str, dict[str, Any]]:
        """Return the ``processes.StackDump`` of each rank that has responded since the last call, as data."""
        dumps = {rank: dump for rank, request in self._stack_requests.items() if (dump := request.poll()) is not None}
        for rank in dumps:
            del self._stack_requests[rank]
        return {str(rank): asdict(dump) for rank, dump in dumps.items()}

    def _on_profile(self, fields: Fields) -> None:
        for rank in fields["ranks"]:
            self.run.write(f"rank-{int(rank)}.profile", dict(fields["recording"]))

    def _on_serving(self, fields: Fields) -> Reply:
        try:  # socket and token (see ``worker.rank_socket``)
            return dict(json.loads((self.run.path / f"rank-{int(fields['rank'])}.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RequestFailed(f"Rank {fields['rank']} is not listening.") from None

    def reap_adopted(self) -> None:
        """Reap orphans that became this process's children. No other thread may wait for its children meanwhile."""
        children = {child.popen.pid: child for child in self._children}
        with contextlib.suppress(ChildProcessError):
            while (zombie := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if zombie.si_pid in children:
                    children[zombie.si_pid].popen.poll()
                else:
                    os.waitpid(zombie.si_pid, os.WNOHANG)

    # signal and stop --------------------------------------------------------------------------

    def _on_signal(self, fields: Fields) -> Reply:
        return {"sent": self.signal(str(fields["name"]), str(fields["to"]))}

    def signal(self, name: str, target: str) -> int:
        """Signal the ``"ranks"`` with their children, or ``"all"`` except services; return the number of processes.

        Raises KeyError for an unknown signal, ValueError for an unknown target.
        """
        number = _SIGNALS[name]
        self.was_signaled = True
        if target not in ("ranks", "all"):
            raise ValueError(f"Unknown target {target!r}. Use 'ranks' or 'all'.")
        rank_pids = [child.popen.pid for child in self._list_running() if child.kind == RANK]
        if target == "ranks" and rank_pids:
            for pid in rank_pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, number)
            return len(rank_pids)
        if target == "all":
            pids = self.find_living()
        else:  # signaling the launcher would end the job immediately, so let only the ranks clean up
            running = processes.read_table()
            pids = processes.find_descendants(processes.find_workers(self._find_pids(running)), running)
        processes.send_signal(pids, number)
        return len(pids)

    def warn_ranks(self) -> None:
        """Send USR1 once to each rank that handles it."""
        rank_pids = [child.popen.pid for child in self._list_running() if child.kind == RANK]
        ranks = rank_pids or processes.find_workers(self._find_pids())
        pids = [pid for pid in ranks if pid not in self._warned_pids and processes.has_handler(pid, signal.SIGUSR1)]
        self._warned_pids.update(pids)
        processes.send_signal(pids, signal.SIGUSR1)

    def kill(self) -> int:
        """Kill everything and wait for the exits; return the number of processes."""
        killed: set[int] = set()

        def find_remaining() -> set[int]:
            pids = self._find_pids()
            # Do not wait for killed processes that are blocked in the kernel; they exit when it returns.
            killable = pids.difference(processes.find_stuck(pids & killed))
            killed.update(pids)
            return killable

        processes.kill_all(find_remaining, meanwhile=self._discard)
        return len(killed)

    def terminate(self) -> None:
        """Stop all processes after the supervisor was lost: TERM, then KILL."""
        processes.send_signal(self._find_pids(), signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._find_pids() and time.monotonic() < deadline:
            self._discard()
            time.sleep(0.05)
        self.kill()

    def _discard(self) -> None:
        """Empty full pipes, and reap zombies."""
        self._channels.discard_all()
        self._list_running()

    def clean_up(self, remove: Callable[[Path], None] | None) -> None:
        """Reap killed processes, and remove the private folder and, with ``remove``, the copied one."""
        for child in self._children:
            if child.popen.stdin is not None:
                with contextlib.suppress(OSError):
                    child.popen.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.popen.wait(1.0)
        self.run.close()
        if self._base is not None:
            data_cache.remove_links(self.name, self._base or files.DEFAULT_BASE)
        if self.workdir.is_copy and remove is not None:
            remove(self.workdir.folder)


def sweep(name: str, base: str) -> int:
    """Kill the remaining processes of a job and remove its folders; return the number of processes."""
    pids = processes.kill_job(files.check_name(name))
    run_dir.sweep(name)
    for folder in list(files.find_copied_folders(name, base)):
        files.remove_except_results(folder)
    data_cache.remove_links(name, base or files.DEFAULT_BASE)
    return len(pids)

"""One job on this host: its folders, its processes, and how they are all found, signalled and ended.

It does not know the wire: what the supervisor needs is returned.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.node import data_cache, devices, files, processes, run_dir
from distdl_jupyter.node.children import RANK, Channels, Child, Children, ProcessSpec
from distdl_jupyter.node.files import Workdir
from distdl_jupyter.node.run_dir import Pipes

if TYPE_CHECKING:
    from distdl_jupyter.node.resources import Sampler

_SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
#: Seconds between TERM and KILL when the job has lost its supervisor.
_GRACE = 2.0
#: Looking for processes costs at most this part of the time.
_SHARE = 0.02


class Job(Children):
    """All that runs for one job here. ``spared`` are processes of the agent that are not the job's."""

    def __init__(
        self, name: str, workdir: Workdir, channels: Channels, spared: Sequence[int], base: str = "", python: str = ""
    ) -> None:
        super().__init__(channels, python)
        self.name = name
        self.place = workdir
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
        """The variables that every process of the job has in its environment."""
        return {processes.MARK: self.name, "DISTDL_PIPES": str(self.pipes.folder)}

    @property
    def _marks_to_find(self) -> dict[str, str]:
        """The marks by which its processes are found."""
        return self.marks

    # start ------------------------------------------------------------------------------------

    def start(self, programs: Sequence[ProcessSpec]) -> dict[int, int]:
        """Start processes, all or none: {process: pid}. Raises NotStarted."""
        self._count_until = 0.0
        return super().start(
            [program._replace(environment=self._environment(program.environment)) for program in programs]
        )

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of a process, with ``variables`` in it."""
        inherited = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        paths = [_package_root(), *(path for path in inherited.split(os.pathsep) if path != _package_root())]
        path = os.pathsep.join(path for path in paths if path)
        return {**_login_environment(), **variables, **self._gpu_variables(variables), **self.marks, "PYTHONPATH": path}

    def _gpu_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of GPUs with their CUDA identifiers on this host."""
        if not variables.get("CUDA_VISIBLE_DEVICES"):
            return {}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return devices.in_words(variables, devices.visible())
        return {}

    def open_pipes(self, ranks: Sequence[Mapping[str, Any]], variables: Sequence[Any]) -> None:
        """Make named pipes for ranks that a launcher will start. Raises KeyError and OSError."""
        # A launcher may have a TMPDIR of its own, and its ranks would inherit it.
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

    def alive(self) -> set[int]:
        """Return every living process of the job but its services, which end with it."""
        running = processes.table()
        services = processes.descendants((child.popen.pid for child in self._services()), running)
        return self._all(running) - services

    def stuck(self) -> list[int]:
        """Return those that no signal reaches, also when only some threads of what was started here are left."""
        return processes.stuck({*self.alive(), *(child.popen.pid for child in self.running())})

    def everything(self) -> set[int]:
        """Return every living process of the job."""
        return self._all(processes.table())

    def drain(self) -> str:
        """Pass on what was written, and return a sentence when the kernel has killed for lack of memory, else ""."""
        self._channels.drain_all()
        return self.evidence_of_kill()

    def _all(self, running: dict[int, processes.Process]) -> set[int]:
        return processes.of_job(self._marks_to_find, running, self._spared, orphans=True)

    def count(self) -> int:
        """Return how many of them there were lately."""
        now = time.monotonic()
        if self.any_started and now >= self._count_until:
            self._count = len(self.alive())
            self._count_until = now + (time.monotonic() - now) / _SHARE
        return self._count

    def sample_due(self, now: float) -> float:
        """Return in how many seconds the next sample of what its ranks use is due; inf before any was started."""
        if not self.any_started:
            return math.inf
        if self._sampler is None:
            from distdl_jupyter.node.resources import Sampler  # ranks were started: now it delays none

            self._sampler = Sampler()
        return self._sampler.due(now)

    def sample(self) -> dict[str, Any] | None:
        """Return what its ranks and this host use (see ``node.resources``) once a second, else None."""
        if self.sample_due(time.monotonic()) > 0 or self._sampler is None:
            return None
        running = self.running()
        ranks = {child.number: child for child in running if child.kind == RANK}
        launchers = [child.popen.pid for child in running if child.kind != RANK and not child.open_input]
        gpus = {**self._given_gpus, **{rank: child.gpus for rank, child in ranks.items()}}
        return self._sampler.sample({rank: child.popen.pid for rank, child in ranks.items()}, launchers, gpus)

    def _services(self) -> list[Child]:
        return [child for child in self.running() if child.open_input]

    # signal and end ---------------------------------------------------------------------------

    def signal(self, name: str, to: str) -> int:
        """Signal the ``"ranks"`` with their children, or ``"all"`` but the services; return how many were meant.

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
        # A launcher and its daemons would end the job at once; the ranks get the chance to clean up.
        running = processes.table()
        pids = processes.descendants(processes.workers(self._all(running)), running)
        processes.send(pids, number)
        return len(pids)

    def warn(self) -> int:
        """Send USR1 to each rank that handles it and has not got it; return how many these are."""
        rank_pids = [child.popen.pid for child in self.running() if child.kind == RANK]
        ranks = rank_pids or processes.workers(self._all(processes.table()))
        pids = [pid for pid in ranks if pid not in self._warned and processes.catches(pid, signal.SIGUSR1)]
        self._warned.update(pids)
        processes.send(pids, signal.SIGUSR1)
        return len(pids)

    def kill(self) -> int:
        """KILL everything, and wait for what that reaches; return how many processes were found."""
        killed: set[int] = set()

        def left() -> set[int]:
            pids = self.everything()
            # What was killed and waits in the kernel goes when that lets it.
            rest = pids.difference(processes.stuck(pids & killed))
            killed.update(pids)
            return rest

        processes.kill_all(left, meanwhile=self._drain)
        return len(killed)

    def give_up(self) -> None:
        """End everything without a listener: TERM, then KILL."""
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
        """Remove the private folder and, with ``remove``, the copied one."""
        self.close()
        self.pipes.close()
        self._forget_data()
        if self.place.copied and remove is not None:
            remove(self.place.folder)

    def _forget_data(self) -> None:
        data_cache.forget(self.name, self.base or files.DEFAULT_BASE)


def sweep(name: str, base: str) -> int:
    """End what is left of a job, with its folders; return how many processes were found."""
    pids = processes.kill_job(files.plain(name))
    run_dir.sweep(name)
    for folder in list(files.of_job(name, base)):
        files.abandon(folder)
    data_cache.forget(name, base or files.DEFAULT_BASE)
    return len(pids)


def _login_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "DISTDL_"))}


def _package_root() -> str:
    """Return the folder from which this package was imported: ranks are to be of the same version."""
    return str(Path(__file__).resolve().parents[2])

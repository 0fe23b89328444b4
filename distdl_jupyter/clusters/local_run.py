"""A started job on this machine: pipes to read, exits to hear of, signals to send.

``DirectRun`` starts each rank itself and so knows each exit exactly; ``launcher_run`` leaves that to a launcher.
Either way a named pipe ``alive`` ends in every rank when the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import forking, identity, processes, stagers
from distdl_jupyter.clusters.base import Context, Exit, Remark, Run, Start, Stream, Unkillable
from distdl_jupyter.clusters.forking import Program
from distdl_jupyter.clusters.readiness import await_line
from distdl_jupyter.core import gpus
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.words import plural
from distdl_jupyter.host import processes as host_processes
from distdl_jupyter.host import runfolder
from distdl_jupyter.worker import learning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.clusters.forking import Process
    from distdl_jupyter.core.plan import Placement, Plan, RankPlace, Service
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.host.gpu_locks import HeldGpus
    from distdl_jupyter.host.ports import Ports
    from distdl_jupyter.host.stacks import Answer, Asking

_SERVICE_PATIENCE = 60.0
#: Ranks that are started between two moments in which a start may be stopped.
_HEED = 8
_SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


class LocalRun(Run):
    """What both kinds of run share: services, the lifeline, signals, the tree of processes."""

    def __init__(
        self, spec: JobSpec, placement: Placement, plan: Plan, context: Context, ports: Ports, held: HeldGpus,
        data: Mapping[int, Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._spec = spec
        self._placement = placement
        self._plan = plan
        self._context = context
        self._ports = ports
        self._held = held
        self._data = data
        self._services: list[Process] = []
        self._streams: list[Stream] = []
        self._oom = processes.oom_counters()
        self._asked: Asking | None = None
        #: What the user should read of the start.
        self.noticed: list[Remark] = []
        self._pipes = runfolder.make(spec.id)
        self._lifeline = runfolder.lifeline(self._pipes)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All descriptors of ranks, launcher and services."""
        return tuple(self._streams)

    def launch(self) -> None:
        """Start the services, wait until each is ready, then start the ranks."""
        for service in self._plan.services:
            self._start_service(service)
        self._start_ranks()
        self.noticed += _start_told()

    @abstractmethod
    def _start_ranks(self) -> None: ...

    @abstractmethod
    def _roots(self) -> list[int]:
        """Pids of the directly started processes that were not reaped yet."""

    def _fifo(self, name: str, flags: int) -> int:
        path = self._pipes / name
        os.mkfifo(path, 0o600)
        return os.open(path, flags | os.O_CLOEXEC)

    def _environment(self, place: RankPlace | None) -> dict[str, str]:
        environment = dict(self._context.environment)
        environment["DISTDL_PIPES"] = str(self._pipes)
        if place is not None:
            environment |= self._rank_environment(place)
        return environment

    def _rank_environment(self, place: RankPlace) -> dict[str, str]:
        own = identity.variables(self._placement, place)
        if place.rank == 0:
            own |= self._learning("rank-0")
        variables = {**self._plan.environments[place.rank], **own, **self._data.get(place.node, {})}
        return variables | gpus.in_words(variables, self._gpus)

    @functools.cached_property
    def _gpus(self) -> tuple[gpus.Gpu, ...]:
        return gpus.devices()

    def _learning(self, who: str) -> dict[str, str]:
        """Let a process tell what it has imported, for the next job's warm start."""
        folder = learning.folder_of(self._context.folder.path)
        return {learning.VARIABLE: str(folder / f"{who}.json")} if folder.is_dir() else {}

    @property
    def _python(self) -> str:
        return self._spec.python or sys.executable

    def _worker(self) -> list[str]:
        return [self._python, "-P", "-m", "distdl_jupyter.worker"]

    def _start_service(self, service: Service) -> None:
        read, write = os.pipe()
        try:
            arguments = [self._python, *service.arguments]
            environment = self._environment(None) | self._learning(f"service-{len(self._services)}")
            process = forking.start(Program(arguments, environment, subprocess.PIPE, write, write))
        finally:
            os.close(write)
        self._services.append(process)
        processes.spared.add(process.pid)
        self._streams.append(Stream(read, None, "out"))
        waiting = f"waiting for {service.name}"
        said = await_line(read, service.ready, _SERVICE_PATIENCE, lambda: self._context.tell("start", waiting))
        if service.ready not in said:
            raise LaunchFailed(f"{service.name} did not start.", output=said.strip()[-2000:])
        os.set_blocking(read, False)

    def remarks(self) -> list[Remark]:
        """Return, once, what was noticed at the start."""
        noticed, self.noticed = self.noticed, []
        return noticed

    def alive(self) -> list[int]:
        """Return every living process of the job but its services."""
        return processes.tree(self._context.folder.id, self._roots())

    def signal(self, name: str) -> None:
        """INT goes to each rank's process group, as a terminal would send it; TERM and KILL to the whole tree."""
        if name == "INT":
            self._interrupt()
        else:
            processes.send(self.alive(), _SIGNALS[name])

    def unkillable(self) -> list[Unkillable]:
        """Return them; a rank counts until its exit was seen, also when only some of its threads are left."""
        return [Unkillable("", pid) for pid in host_processes.stuck({*self._roots(), *self.alive()})]

    def ask_stacks(self) -> None:
        """Signal every rank that can answer."""
        from distdl_jupyter.host import stacks

        self._asked = stacks.Asking(self._pipes, (place.rank for place in self._placement.ranks))

    def stacks(self) -> Mapping[int, Answer]:
        """Return what ranks have answered since the last call."""
        return {} if self._asked is None else self._asked.answers()

    def no_stacks(self) -> str:
        """Return "": ranks on this machine can be asked."""
        return ""

    def _interrupt(self) -> None:
        for pid in self._roots():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGINT)

    def handle(self) -> dict[str, Any]:
        """Return the pids of what was started, for people; the sweep goes by the job's mark."""
        return {"pids": self._roots(), "services": [service.pid for service in self._services]}

    def close(self) -> None:
        """End the services and remove the named pipes, also those of runs that died."""
        for service in self._services:
            if service.stdin is not None:
                service.stdin.close()
            service.kill()  # it has nothing to save, and nobody waits for its end gladly
            service.wait()
            processes.spared.discard(service.pid)  # the next process of this number may be a rank's
        for stream in self._streams:
            with contextlib.suppress(OSError):
                os.close(stream.fd)
        os.close(self._lifeline)
        runfolder.remove(self._pipes)
        runfolder.sweep()
        self._ports.release()
        self._held.release()
        if self._data:
            stagers.forget(self._spec.id)

    def abandon(self) -> None:
        """Undo a start that failed half-way."""
        processes.kill_all(self._context.folder.id, self._roots())
        self.poll()
        self.close()


class DirectRun(LocalRun):
    """Ranks are children of this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ranks: dict[int, Process] = {}
        self._started: list[Start] = []

    def _start_ranks(self) -> None:
        for place in self._placement.ranks:
            out_read, out_write = os.pipe()
            err_read, err_write = os.pipe()
            try:
                directory = self._spec.working_directory or None
                self._ranks[place.rank] = forking.start(
                    Program(
                        self._worker(), self._environment(place), subprocess.DEVNULL, out_write, err_write, directory
                    )
                )
            finally:
                os.close(out_write)
                os.close(err_write)
                for fd, name in ((out_read, "out"), (err_read, "err")):
                    os.set_blocking(fd, False)
                    self._streams.append(Stream(fd, place.rank, name))
            self._started.append(Start(place.rank, self._ranks[place.rank].pid))
            if len(self._started) % _HEED == 0:
                self._context.tell("start", f"{len(self._started)} of {plural(len(self._placement.ranks), 'process')}")

    def started(self) -> list[Start]:
        """Return every rank's process."""
        return list(self._started)

    def _roots(self) -> list[int]:
        return [process.pid for process in self._ranks.values() if process.returncode is None]

    def poll(self) -> list[Exit]:
        """Reap ranks that ended."""
        exits = []
        for rank, process in self._ranks.items():
            if process.returncode is None and (code := process.poll()) is not None:
                exits.append(self._exit(rank, code))
        return exits

    def _exit(self, rank: int, returncode: int) -> Exit:
        if returncode >= 0:
            return Exit(rank, returncode, None)
        name = processes.signal_name(-returncode)
        return Exit(rank, None, name, processes.out_of_memory_evidence(self._oom) if name == "KILL" else "")


def _start_told() -> list[Remark]:
    """Say that all was forked where the supervisor was, or why some programs are new interpreters all the same."""
    if forking.fork is None:
        return []
    whys = dict.fromkeys(forking.reasons)
    forking.reasons.clear()
    said = [Remark("info", f"Processes of this job start cold, because {why}.", "cold-start") for why in whys]
    return said or [Remark("info", forking.WARM, "warm-start")]

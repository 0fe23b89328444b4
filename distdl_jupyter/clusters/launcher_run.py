"""A started job on this machine whose ranks a launcher such as ``mpirun`` starts.

Launchers merge the lines of ranks, so each rank connects its output to named pipes of its own; and they alone see the
ranks' exits, so which rank ended first is read from their last words.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import forking, processes
from distdl_jupyter.clusters.base import Exit, Start, Stream
from distdl_jupyter.clusters.local_run import LocalRun
from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distdl_jupyter.core.plan import Launcher

#: Seconds that a launcher may go on after its last rank.
_IDLE = 10.0
#: Seconds between two looks for living ranks.
_PAUSE = 2.0


class LauncherRun(LocalRun):
    """Ranks are started by a launcher; each opens its own pair of named pipes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._said = ""
        self._ended = False
        self._told = False
        self._watch = RankWatch()
        self._idle = ""

    def _start_ranks(self) -> None:
        if forking.fork is not None:
            name = Path(self._launch_with().argv[0]).name
            forking.reasons.append(f"{'the program that leads an elastic job' if self.replaces else name} starts them")
        environments = []
        for place in self._placement.ranks:
            for name in ("out", "err"):
                fd = self._fifo(f"rank-{place.rank}.{name}", os.O_RDWR | os.O_NONBLOCK)
                self._streams.append(Stream(fd, place.rank, name))
            environments.append({"TMPDIR": tempfile.gettempdir(), **self._rank_environment(place)})
        with open(self._pipes / "ranks.json", "w", encoding="utf-8", opener=owned.private) as file:
            json.dump(environments, file)
        read, write = os.pipe()
        try:
            self._launcher = subprocess.Popen(
                [*self._found(self._launch_with().argv), *self._worker()],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                # Open MPI leaves folders in TMPDIR when it is killed, and a daemon of the same number fails over them.
                env=self._environment(None) | {"TMPDIR": str(self._pipes)} | dict(self._launch_with().environment),
                cwd=self._spec.working_directory or None,
                start_new_session=True,
            )
        finally:
            os.close(write)
            os.set_blocking(read, False)
            self._streams.append(Stream(read, None, "out"))

    def _launch_with(self) -> Launcher:
        assert self._plan.launcher is not None, "a plan without a launcher is run by DirectRun"
        return self._plan.launcher

    def _found(self, argv: Sequence[str]) -> list[str]:
        """Return the command line with the program's path: the one of the job's environment, else of the PATH."""
        own = Path(self._python).parent / argv[0]
        return [str(own) if own.exists() else argv[0], *argv[1:]]

    def started(self) -> list[Start]:
        """Return nothing: ranks tell their pids themselves."""
        return []

    def _roots(self) -> list[int]:
        process = self._launcher
        return [process.pid] if process is not None and process.returncode is None else []

    def _interrupt(self) -> None:
        # The launcher and its daemons would end the job at once; the ranks get the chance to clean up.
        ranks = processes.running(self.alive(), self._worker())
        processes.send(processes.with_descendants(ranks), signal.SIGINT)

    def overheard(self, text: str) -> None:
        """Keep the end of what the launcher prints: it names the rank that ended first."""
        self._said = (self._said + text)[-20_000:]

    def poll(self) -> list[Exit]:
        """When the launcher has ended, all ranks have. Told one call later, after its last words were heard."""
        process = self._launcher
        if process is None or self._told:
            return []
        if process.poll() is None:
            self._end_idle_launcher(process.pid)
            return []
        if not self._ended:
            self._ended = True
            return []
        self._told = True
        ranks = range(len(self._placement.ranks))
        if process.returncode == 0:
            return [Exit(rank, 0, None) for rank in ranks]
        first = self._launch_with().first_exit(self._said)
        return [self._exit(rank, first, process.returncode) for rank in ranks]

    def _end_idle_launcher(self, pid: int) -> None:
        if self._watch.have_gone(lambda: processes.running(processes.with_descendants([pid]), self._worker())):
            self._idle = "The launcher went on after its last rank had ended, so it was ended too."
            processes.send(processes.with_descendants([pid]), signal.SIGKILL)

    def _exit(self, rank: int, first: tuple[int, int | None, int | None] | None, returncode: int) -> Exit:
        if first is None:
            return Exit(rank, abs(returncode), None, self._idle or f"The launcher ended with code {returncode}.")
        first_rank, code, number = first
        if rank != first_rank:
            return Exit(rank, None, "TERM", "stopped")
        if number is None:
            return Exit(rank, code, None)
        name = processes.signal_name(number)
        return Exit(rank, None, name, processes.out_of_memory_evidence(self._oom) if name == "KILL" else "")


class RankWatch:
    """Says when the ranks of a launcher have been gone for ``_IDLE`` seconds.

    Daemons of Open MPI 5 can miss the end of the last rank when several end at once; the launcher then waits forever.
    """

    def __init__(self) -> None:
        self._seen = False
        self._next = 0.0
        self._missing_since: float | None = None

    def have_gone(self, living: Callable[[], list[int]]) -> bool:
        """Ask ``living`` every ``_PAUSE`` seconds; before the first rank was seen nothing counts as gone."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PAUSE
        if living():
            self._seen, self._missing_since = True, None
        elif self._seen and self._missing_since is None:
            self._missing_since = now
        return self._missing_since is not None and now - self._missing_since > _IDLE

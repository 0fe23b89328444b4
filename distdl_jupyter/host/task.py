"""A program: one rank of a job in an allocation of Slurm, started by ``srun`` on the rank's node.

``python -m distdl_jupyter.host.task FOLDER`` reads ``plan.json`` there, meets the other tasks, runs the worker with its
output going into files of that folder, and writes down how it ended. ``FOLDER launch`` runs the plan's launcher instead
(once, on the first node), ``FOLDER signal NAME`` signals the ranks on one node, ``FOLDER stacks`` asks them where they
stand; with a launcher ``FOLDER stage`` brings one node's data and ``FOLDER forget`` takes its folders away.

Nobody need watch: it ends its rank by itself when another one has failed and nobody stops the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.host import asked, memory, node_data, processes
from distdl_jupyter.host.allotment import Place
from distdl_jupyter.host.asked import Errand
from distdl_jupyter.host.meeting import NoMeeting
from distdl_jupyter.host.services import Services, gather

#: Seconds between two looks at the rank's processes.
_LOOK = 1.0
#: Seconds between two looks for the answers of ranks that are asked.
_SOON = 0.1
#: Seconds that processes which a rank left behind may live on when all ranks have ended.
_LEFT_PATIENCE = 20.0
#: Seconds that a rank may go on after another one has failed.
_FAILED_PATIENCE = 60.0
#: Seconds in which a launcher's daemons may end after it.
_DAEMONS_PATIENCE = 5.0


class Task:
    """One started program and everything that descends from it.

    ``heed`` is called now and then, to carry questions; it says whether it wants to be called again soon.
    """

    def __init__(self, place: Place, name: str, services: Services, heed: Callable[[], bool]) -> None:
        self._place = place
        self._heed = heed
        self._name = name
        self._services = services
        self._told: list[int] | None = None
        self._memory = memory.counters()
        self._failed_since: float | None = None
        self._asked = 0
        self._wake = _wake_on_child(self._ask)
        processes.adopt_orphans()

    def _ask(self, number: int, _frame: object) -> None:
        """Hear INT or TERM: Slurm sends them to the rank as well, which decides; one that is not there yet cannot."""
        self._asked = self._asked or number

    def asked(self) -> int:
        """Return the signal by which it was first asked to end, 0 for none."""
        return self._asked

    def run(self, argv: Sequence[str], environment: Mapping[str, str], out: int | None, err: int | None) -> int:
        """Run it to its end and return 0, or the code that stands for its failure."""
        if self.asked():
            self.end(-self.asked())
            return 128 + self.asked()
        try:
            pid = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment)).pid
        except OSError as error:
            self.end(None, f"{argv[0]} cannot be started on {self._place.node}: {error.strerror}.")
            return 1
        if self.asked():
            processes.send([pid], self.asked())  # it came in between, and may have missed the new process
        returncode = self._await(pid)
        self._settle()
        self.end(returncode)
        return returncode if returncode >= 0 else 128 - returncode

    def _await(self, pid: int) -> int:
        while True:
            found = _reap().get(pid)
            if found is not None:
                return found
            self._tell(self._living())
            self._end_after_failure(pid)
            self._rest(_SOON if self._heed() else _LOOK)

    def _settle(self) -> None:
        """Give a launcher's daemons the moment in which they end by themselves."""
        until = time.monotonic() + (_DAEMONS_PATIENCE if self._place.plan["launcher"] else 0.0)
        while self._living() and time.monotonic() < until:
            _reap()
            self._rest(0.1)

    def _rest(self, seconds: float) -> None:
        if select.select([self._wake], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _living(self) -> list[int]:
        found = processes.descendants([os.getpid()], processes.table()) - {os.getpid()}
        return sorted(found - self._services.pids)

    def _tell(self, living: list[int]) -> None:
        if living != self._told:
            self._told = living
            _write(self._place.folder / f"{self._name}.alive", {"node": self._place.node, "pids": living})

    def _end_after_failure(self, pid: int) -> None:
        """End this rank when another one failed long ago: whoever should have done it is not there."""
        if self._failed_since is None and (self._place.folder / "failed").exists():
            self._failed_since = time.monotonic()
        waited = 0.0 if self._failed_since is None else time.monotonic() - self._failed_since
        if waited > _FAILED_PATIENCE:
            processes.send([pid], signal.SIGTERM if waited < _FAILED_PATIENCE + 10 else signal.SIGKILL)

    def end(self, returncode: int | None, evidence: str = "") -> None:
        """Write down how it ended; the sizes say how much output belongs to it."""
        folder = self._place.folder
        name = processes.signal_name(-returncode) if returncode is not None and returncode < 0 else None
        if name == "KILL":
            evidence = memory.evidence(self._memory)
        sizes = {stream: _size(folder / f"{self._name}.{stream}") for stream in ("out", "err")}
        if returncode != 0:
            with contextlib.suppress(OSError), (folder / "failed").open("x") as file:
                file.write(str(returncode if returncode is not None and returncode > 0 else 1))
        self._tell(self._living())
        _write(folder / f"{self._name}.exit", {"code": returncode if name is None else None, "signal": name,
                                               "evidence": evidence, "node": self._place.node, **sizes})  # fmt: skip

    def linger(self) -> None:
        """Stay until nothing of this rank is left, and node 0's services until all ranks have ended."""
        ended_at: float | None = None
        while (left := self._living()) or (self._services.pids and not self._all_ended()):
            _reap()  # what is adopted
            self._tell(left)
            if ended_at is None and self._all_ended():
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > _LEFT_PATIENCE:
                processes.send(left, signal.SIGKILL)
            self._rest(0.3)
        self._tell([])

    def _all_ended(self) -> bool:
        if self._place.plan["launcher"]:
            return True  # this is the launcher, and it has ended
        return all(_size(self._place.folder / f"rank-{rank}.exit") > 0 for rank in range(self._place.plan["ranks"]))


def _wake_on_child(ask: Callable[[int, object], None]) -> int:
    """Return a descriptor that becomes readable when a child ends; let ``ask`` hear of INT and TERM."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return read


def _reap() -> dict[int, int]:
    """Return the children that have ended: {pid: exit code, or minus the signal's number}."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _write(path: Path, content: Any) -> None:
    """Write a file that appears whole; a full disk is no reason to end a rank."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        hidden.write_text(json.dumps(content), encoding="utf-8")
        hidden.replace(path)


def run_rank(place: Place, rank: int) -> int:
    """Run one rank; the exit code says only whether that could be done, the file ``rank-N.exit`` how it ended."""
    services = Services(place)
    errand = Errand(place.folder, [rank], _write)
    task = Task(place, f"rank-{rank}", services, lambda: _carry(errand))
    try:
        data = node_data.of_rank(place, rank, task.asked)
        gather(place, services, first=rank == 0, stopped=task.asked)
        place.sit(rank, task.asked)
        own = {"DISTDL_STACKS": str(place.folder)}
        streams = [
            os.open(place.folder / f"rank-{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for name in ("out", "err")
        ]
        task.run(place.worker(), place.common() | place.of_rank(rank) | data | own, *streams)
    except NoMeeting as error:
        task.end(-task.asked() or None, str(error))
    task.linger()
    services.close()
    node_data.forget_after(place, rank)
    return 0


def run_launcher(place: Place) -> int:
    """Run the launcher that starts all ranks; each writes into the files of its own (see ``worker.streams``)."""
    services = Services(place)
    errand = Errand(place.folder, (), _write)
    task = Task(place, "launcher", services, lambda: _spread(place, errand))
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_interrupt_everywhere, args=(place,)).start())
    code = 1
    try:
        data = node_data.everywhere(place, task.asked)
        gather(place, services, first=True, stopped=task.asked)
        per_node = place.plan["per_node"]
        own = [place.of_rank(rank) | data[rank // per_node] for rank in range(place.plan["ranks"])]
        for variables, rank in zip(own, range(len(own)), strict=True):
            variables["DISTDL_HOST"] = place.nodes[rank // place.plan["per_node"]]
        _write(place.folder / "ranks.json", own)
        launcher = place.plan["launcher"]
        argv = [_hosts_in(place.fill(word), place.nodes) for word in launcher["argv"]]
        environment = place.common() | place.filled(launcher["environment"]) | {"DISTDL_PIPES": str(place.folder)}
        code = task.run([_found(argv[0], place.plan["python"]), *argv[1:], *place.worker()], environment, None, None)
    except NoMeeting as error:
        task.end(-task.asked() or None, str(error))
    task.linger()
    services.close()
    node_data.forget_everywhere(place)
    return code


def _hosts_in(word: str, nodes: Sequence[str]) -> str:
    """Return a launcher's word with the nodes' names for ``node-0:``, ``node-1:`` ..., by which the plan calls them."""
    return re.sub(r"\bnode-(\d+)(?=:)", lambda found: nodes[int(found[1])], word)


def _found(program: str, python: str) -> str:
    own = Path(python).parent / program
    return str(own) if own.exists() else program


def _interrupt_everywhere(place: Place) -> None:
    """Interrupt the ranks on all nodes: under a launcher they have no task of their own."""
    _everywhere(place, "signal", "INT")


def _everywhere(place: Place, *words: str) -> None:
    """Run this program with ``words`` once on every node."""
    subprocess.run(
        ["srun", "--overlap", f"--nodes={len(place.nodes)}", "--ntasks-per-node=1", "--mpi=none", "--export=ALL",
         str(place.folder / "start"), *words],
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def _carry(errand: Errand) -> bool:
    errand.look()
    return errand.busy


def _spread(place: Place, errand: Errand) -> bool:
    """Let a question be carried on every node: under a launcher the ranks have no task of their own."""
    if errand.asked:
        threading.Thread(target=_everywhere, args=(place, "stacks"), daemon=True).start()
    return False


def ask_ranks(place: Place) -> int:
    """Carry the question to the ranks on this node and write down their answers."""
    first = place.nodes.index(place.node) * place.plan["per_node"] if place.node in place.nodes else 0
    errand = Errand(place.folder, range(first, first + place.plan["per_node"]), _write)
    errand.ask(asked.number(place.folder))
    while errand.busy:
        errand.look()
        time.sleep(_SOON)
    return 0


def signal_ranks(place: Place, name: str) -> int:
    """Signal the ranks of the job on this node and all that descends from them."""
    living = processes.table()
    ranks = processes.workers(processes.marked(living, {"DISTDL_JOB_ID": place.plan["job"]}))
    processes.send(processes.descendants(ranks, living), getattr(signal, f"SIG{name}"))
    return 0


def main() -> int:
    """Do what the command line says."""
    place = Place(Path(sys.argv[1]))
    if sys.argv[2:3] == ["launch"]:
        return run_launcher(place)
    if sys.argv[2:3] == ["stage"]:
        return node_data.stage_node(place)
    if sys.argv[2:3] == ["forget"]:
        return node_data.forget_node(place)
    if sys.argv[2:3] == ["stacks"]:
        return ask_ranks(place)
    if sys.argv[2:3] == ["signal"]:
        return signal_ranks(place, sys.argv[3])
    return run_rank(place, int(os.environ["SLURM_PROCID"]))


if __name__ == "__main__":
    sys.exit(main())

"""A job in Slurm: output from the files that its tasks write, ends from what they write down, else from Slurm's state.

Everything here can be taken up again by another supervisor: the job's number and its folder are all it takes.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Context, Exit, Remark, Run, Start, Stream
from distdl_jupyter.clusters.launcher_run import exit_of
from distdl_jupyter.clusters.slurm import commands, data, told, words
from distdl_jupyter.clusters.slurm.tail import Tail, Tailer, make_room
from distdl_jupyter.clusters.slurm.watch import Watch
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.host import asked

if TYPE_CHECKING:
    from distdl_jupyter.clusters.slurm.script import Site
    from distdl_jupyter.clusters.slurm.told import FirstExit
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.host.stacks import Answer

#: Seconds that a rank's last output may take to be seen here, through a network file system.
_SETTLE = 10.0
#: Seconds that an end may wait for Slurm's word about its cause.
_CAUSE = 5.0
#: Seconds after Slurm's end of the job in which tasks' last files may still become visible.
_GRACE = 3.0
#: Seconds that the end of a job waits for Slurm to take its processes away.
_RELEASE = 15.0
#: Slurm's word for an output file that could not be opened on the node (its exit "signal" 53).
_NO_OUTPUT = 53
_NODE_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? ([\d,-]+): ([A-Z][^\n]*)")


class SlurmRun(Run):
    """One submitted job. ``read`` says how much of each (rank, stream) was heard before."""

    stacks_seconds = 9.0

    def __init__(
        self, spec: JobSpec, site: Site, job: str, context: Context, first_exit: FirstExit | None = None,
        read: Mapping[tuple[int, str], int] | None = None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._site = site
        self._context = context
        self._first_exit = first_exit
        read = read or {}
        make_room(4 * spec.process_count)
        self._tailer = Tailer((
            Tail(site.output, None, "out", read.get((-1, "sys"), 0)),
            *(Tail(site.run / f"rank-{rank}.{name}", rank, name, read.get((rank, name), 0))
              for rank in range(spec.process_count) for name in ("out", "err")),
        ))  # fmt: skip
        self._watch = Watch(job)
        staging = context.staging
        self._data = None if staging is None else data.Listener(site.run, spec.node_count, staging)
        self._open = set(range(spec.process_count))
        self._seen: dict[int, float] = {}
        self._died: dict[int, tuple[float, str]] = {}
        self._lost: set[str] = set()
        self._sent: set[str] = set()
        #: Which values did not come back.
        self._stayed: list[Remark] = []
        self._over_at: float | None = None
        self._question, self._unheard = 0, set[int]()
        self._tailer.start()
        self._watch.start()
        if self._data is not None:
            self._data.start()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What Slurm's batch script printed, then each rank's output."""
        return tuple(tail.stream for tail in self._tailer.tails)

    def started(self) -> list[Start]:
        """Return nothing: ranks tell their pids themselves."""
        return []

    def waiting(self) -> str:
        """Return why Slurm has not begun the job, with its number."""
        state = self._watch.state
        if any(tail.position for tail in self._tailer.tails):
            return ""  # a rank speaks, which Slurm tells a little later
        if state is None:
            return f"Slurm job {commands.number(self._watch.job)} was submitted"
        if not state.pending:
            return ""
        return f"Slurm job {commands.number(self._watch.job)}: {words.waiting(state)}"

    def remarks(self) -> list[Remark]:
        """Return what Slurm said that the user should act on."""
        found, self._stayed = [*self._watch.remarks(), *self._stayed], []
        return found

    def overheard(self, text: str) -> None:
        """Hear of tasks that were killed and of nodes that were lost."""
        for names in _NODE_LOST.findall(text):
            self._lost.update(names.split(","))
        for ranks, how in _TASK_ENDED.findall(text):
            for rank in told.numbers(ranks):
                self._died.setdefault(rank, (time.monotonic(), how))

    # ends -------------------------------------------------------------------------------------

    def poll(self) -> list[Exit]:
        """Return the ranks that have ended and whose output was passed on."""
        if self._data is not None:
            self._data.pass_on()
        found = self._launched(self._first_exit) if self._first_exit is not None else self._told()
        if not found and self._open and self._is_over():
            found = [self._without_word(rank) for rank in sorted(self._open)]
        self._open -= {exit_.rank for exit_ in found}
        return found

    def _told(self) -> list[Exit]:
        found = []
        for rank in sorted(self._open):
            if (word := told.read(self._site.run / f"rank-{rank}.exit")) and self._settled(rank, word):
                found.append(Exit(rank, word.get("code"), word.get("signal"), self._cause(word)))
            elif not word and self._node_of(rank) in self._lost:
                found.append(self._without_node(rank))
            elif not word and self._died_silently(rank):
                found.append(told.as_srun_says(rank, self._died[rank][1], self._slurm_says()))
        return found

    def _settled(self, rank: int, word: Mapping[str, Any]) -> bool:
        """Say whether all of the rank's output is here, and Slurm was asked where it may know the cause."""
        now = time.monotonic()
        if rank not in self._seen:
            self._seen[rank] = now
            self._watch.hurry()
        waited = now - self._seen[rank]
        whole = all(self._tailer.position(rank, name) >= int(word.get(name) or 0) for name in ("out", "err"))
        asked = word.get("signal") not in ("TERM", "KILL") or bool(self._sent) or self._looked_after(self._seen[rank])
        return (whole or waited > _SETTLE) and (asked or waited > _CAUSE)

    def _looked_after(self, moment: float) -> bool:
        """Say whether Slurm was asked since then, and has made up its mind."""
        state = self._watch.state
        return self._watch.asked_at > moment and state is not None and state.state != "COMPLETING"

    def _node_of(self, rank: int) -> str:
        return str(told.read(self._site.run / f"rank-{rank}.alive").get("node") or "")

    def _without_node(self, rank: int) -> Exit:
        node = self._node_of(rank)
        return Exit(rank, None, None, f"Slurm lost {node if node in self._lost else 'a node of the job'}.")

    def _died_silently(self, rank: int) -> bool:
        return rank in self._died and time.monotonic() - self._died[rank][0] > _GRACE

    def _cause(self, word: Mapping[str, Any]) -> str:
        own = str(word.get("evidence") or "")
        return own or (self._slurm_says() if word.get("signal") else "")

    def _slurm_says(self) -> str:
        return words.end(self._watch.state) if self._watch.state is not None and not self._sent else ""

    def _is_over(self) -> bool:
        """Say whether Slurm ended the job some seconds ago."""
        if not self._watch.ended:
            return False
        self._over_at = self._over_at or time.monotonic()
        return time.monotonic() - self._over_at > _GRACE

    def _without_word(self, rank: int) -> Exit:
        """Return the end of a rank of which only Slurm knows."""
        state = self._watch.state
        assert state is not None, "the job is over, which only its state tells"
        if state.state == "NODE_FAIL":
            return self._without_node(rank)
        if "KILL" in self._sent:
            return Exit(rank, None, "KILL")
        if self._watch.forgotten:
            return Exit(
                rank, None, None, f"Slurm knows nothing any more of its job {commands.number(self._watch.job)}."
            )
        if state.exit_signal == _NO_OUTPUT:
            why = f"The nodes cannot write to {self._site.job}: set the option directory to a folder that all share."
            return Exit(rank, 1, None, why)
        if state.state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE"):
            return Exit(rank, None, "TERM", words.end(state) if not self._sent else "")
        return Exit(rank, state.exit_code or 1, None, words.end(state) or told.unexplained(state))

    def _launched(self, reader: FirstExit) -> list[Exit]:
        """Return all ranks' ends when their launcher has ended and everything that was printed is here."""
        word = told.read(self._site.run / "launcher.exit")
        if not word or not self._open:
            return []
        if self._over_at is None:
            self._over_at = time.monotonic()
            self._watch.hurry()
        if not self._tailer.caught_up() and time.monotonic() - self._over_at < _SETTLE:
            return []
        code = word.get("code")
        if code == 0:
            return [Exit(rank, 0, None) for rank in sorted(self._open)]
        evidence = str(word.get("evidence") or "") or self._slurm_says() or f"The launcher ended with code {code}."
        first = reader(told.end_of(self._site.output))
        return [exit_of(rank, first, code or 1, evidence) for rank in sorted(self._open)]

    # signals ----------------------------------------------------------------------------------

    def alive(self) -> Sequence[object]:
        """Return (node, pid) of what tasks say that lives; the job itself before they have said anything."""
        if self._watch.ended:
            return []
        job = f"Slurm job {commands.number(self._watch.job)}"
        return told.alive_in(self._site.run) or ([job] if self._open else [])

    def signal(self, name: str) -> None:
        """Let Slurm signal the job's processes; one that still waits in the queue is taken out of it."""
        job, launched = self._watch.job, self._first_exit is not None
        withdraw = partial(commands.cancel, job, pending_only=True)
        if name == "KILL":
            self._watch.send(withdraw, *killing(job), *([partial(commands.cancel, job)] if name in self._sent else []))
        elif name == "INT" and launched:
            # Its launcher would end the job at once; the batch script knows how to interrupt the ranks.
            self._watch.send(withdraw, partial(commands.send, job, "USR1", part="batch"))
        else:
            self._watch.send(withdraw, partial(commands.send, job, name, everywhere=launched))
        self._sent.add(name)

    def ask_stacks(self) -> None:
        """Put the question into the job's folder, where the ranks' tasks find it within a second."""
        self._question = time.time_ns() // 1_000_000
        self._unheard = set(self._open)
        hidden = self._site.run / f".{asked.QUESTION}"
        with contextlib.suppress(OSError):
            hidden.write_text(json.dumps({"number": self._question}), encoding="utf-8")
            hidden.replace(self._site.run / asked.QUESTION)

    def stacks(self) -> Mapping[int, Answer]:
        """Return what tasks have written down since the last call."""
        from distdl_jupyter.host.stacks import of_json

        found = {}
        for rank in sorted(self._unheard):
            word = told.read(self._site.run / f"rank-{rank}.answer")
            if word.get("number") == self._question:
                found[rank] = of_json(word)
        self._unheard -= found.keys()
        return found

    def no_stacks(self) -> str:
        """Return why ranks cannot be asked while the job waits for its turn."""
        return "Slurm has not begun the job." if self.waiting() else ""

    def handle(self) -> dict[str, Any]:
        """Return the job's number and folder, and how a launcher's last words are read."""
        reader = self._first_exit
        return {
            "slurm_job": self._watch.job,
            "folder": str(self._site.job),
            "run": self._site.run.name,
            "copied": self._site.copied,
            "first_exit": None if reader is None else f"{reader.__module__}:{reader.__qualname__}",
        }

    def collect(self) -> None:
        """Bring results and outputs home when the job had a folder of its own."""
        try:
            stayed = self._site.collect(self._context.folder, self._spec.process_count)
        except OSError as error:
            raise LaunchFailed(f"Results cannot be brought from {self._site.job}: {error}.") from error
        self._stayed = [Remark("warning", text, "collected") for text in stayed]

    def close(self) -> None:
        """Wait until Slurm has freed the nodes, then take the job's files for Slurm away."""
        until = time.monotonic() + _RELEASE
        self._watch.hurry()
        while not self._watch.ended and self._watch.is_alive() and time.monotonic() < until:
            time.sleep(0.05)
        self._tailer.stop()
        self._watch.stop()
        if self._data is not None:
            self._data.stop()
        if self._watch.ended:
            self._site.remove()


def killing(job: str) -> list[Callable[[], None]]:
    """Return what kills a job's ranks, and its batch script where that started them."""
    return [partial(commands.send, job, "KILL", part=part) for part in ("0", "batch")]

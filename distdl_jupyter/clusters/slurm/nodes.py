"""The nodes that Slurm gave to a job: what is known of their ends, and how the job leaves them."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.agents.folder_link import FolderLink, Tail
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.agents.wire import Wire
from distdl_jupyter.clusters.base import Exit, Notice, Stream
from distdl_jupyter.clusters.slurm import accounting, commands, words
from distdl_jupyter.clusters.slurm.commands import JobState
from distdl_jupyter.clusters.slurm.watch import Watch
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node.folder import files

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.staging import AgentNode, Job
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.clusters.slurm.script import Site
    from distdl_jupyter.core.plan import Placement, RankSlot

#: Seconds that an end may wait for Slurm's word about its cause.
_CAUSE_SECONDS = 5.0
#: Seconds that the end of a job waits for Slurm to take its processes away.
_RELEASE_SECONDS = 15.0
#: Bytes of what the batch script printed that are told when it fails.
_LONGEST = 20_000
#: Slurm's word for an output file that could not be opened on the node (its exit "signal" 53).
_NO_OUTPUT = 53
_NODE_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_TIME_LIMIT = "DUE TO TIME LIMIT ***"
#: What slurmstepd says of a kill, where the job's state does not (cgroups; JobAcctGatherParams=OverMemoryKill).
_NO_MEMORY = re.compile(r"slurmstepd\S*: error: .*(exceeded memory limit|oom.kill event)")
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? ([\d,-]+): ([A-Z][^\n]*)")


class SlurmJob:
    """One submitted job: what Slurm says of it, and the links to its agents."""

    def __init__(self, site: Site, job: str) -> None:
        self.site = site
        self.job = job
        self.watch = Watch(job)
        self.watch.start()
        #: Signals that were sent from here.
        self.sent: set[str] = set()
        self._hosts: list[str] = []
        self._lost: set[str] = set()
        self._ended: dict[int, str] = {}
        #: Whether Slurm has killed something of it for its memory.
        self.lacked_memory = False
        #: Whether Slurm's daemon on a node has said that the job's time is over.
        self.is_timed_out = False

    @property
    def number(self) -> str:
        """Slurm's number of the job."""
        return commands.number(self.job)

    def hosts(self) -> list[str]:
        """Return the nodes in Slurm's order, [] before the job has begun. Raises SlurmFailed."""
        state = self.watch.state
        if state is None or state.state != "RUNNING" or not state.nodes:
            if state is not None and state.pending and self._has_begun():
                self.watch.hurry()
            return []
        if not self._hosts:
            self._hosts = commands.hosts(state.nodes)
        return self._hosts

    def _has_begun(self) -> bool:
        """Say whether an agent has spoken, which Slurm is asked about every few seconds only."""
        try:
            return (self.site.run / files(0)[-1]).stat().st_size > 0
        except OSError:
            return False

    def connect(self, node: int, host: str, *, takeover: bool = False) -> Connection:
        """Return the connection to the agent of a node, which is not started yet. Raises LaunchFailed."""
        link = FolderLink(self.site.run, node, partial(self.why_lost, node, host), takeover=takeover)
        # Each request and each channel has taken more than one byte, so no earlier supervisor has come so far.
        found = Connection(Host(host, host), "", partial(Wire, host, link, b""), link.sent + 1)
        number = self.watch.state.number if self.watch.state is not None else self.number
        found.shell = f"srun --overlap --jobid={number} --nodelist={host}"
        return found

    def printed(self) -> str:
        """Return the end of what the batch script and srun have printed."""
        try:
            with self.site.output.open("rb") as file:
                file.seek(max(0, self.site.output.stat().st_size - _LONGEST))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def listen(self, text: str) -> None:
        """Learn from srun's words which nodes are lost and which agents have ended."""
        for hosts in _NODE_LOST.findall(text):
            self._lost.update(hosts.split(","))
        self.is_timed_out = self.is_timed_out or _TIME_LIMIT in text
        self.lacked_memory = self.lacked_memory or _NO_MEMORY.search(text) is not None
        for nodes, how in _TASK_ENDED.findall(text):
            for node in numbers(nodes):
                self._ended.setdefault(node, how)

    def why_lost(self, node: int, host: str) -> str:
        """Return why a node is not there any more, "" while it is."""
        if host in self._lost:
            return f"Slurm lost {host}."
        state = self.watch.state
        if state is not None and self.watch.ended:
            return self.why_ended()
        if node in self._ended:
            return f"The agent on {host} ended: {self._ended[node]}."
        return ""

    def why_ended(self) -> str:
        """Return what Slurm says of the job's end, one sentence."""
        state = self.watch.state
        assert state is not None, "the job has ended, which only its state tells"
        if self.watch.forgotten:
            if self.site.link is not None and not self.watch.has_run:
                return f"Slurm no longer knows job {self.number}; it was canceled (scancel) in the queue."
            return f"Slurm no longer knows job {self.number}."
        if state.exit_signal == _NO_OUTPUT:
            return (
                f"The nodes cannot write to {self.site.job}. Set the option directory to a folder that all nodes share."
            )
        if self.lacked_memory and state.state == "FAILED":
            state = dataclasses.replace(state, state="OUT_OF_MEMORY")
        return words.end(state) or words.unexplained(state)

    def refusal(self) -> LaunchFailed:
        """Return why the job's nodes were not ready."""
        state = self.watch.state
        if state is not None and self.watch.ended:
            code = f" Its script ended with exit code {state.exit_code}." if state.exit_code else ""
            why = f"Slurm job {self.number} ended before its ranks were started. {self.why_ended()}{code}"
            return LaunchFailed(why, code="slurm-job-ended-early", output=self.printed())
        lost = (self.why_lost(node, host) for node, host in enumerate(self.hosts()))
        why = f"Slurm job {self.number} could not start on all nodes. {' '.join(filter(None, lost))}"
        return LaunchFailed(why, code="slurm-nodes-not-ready", output=self.printed())

    def interruption(self) -> str:
        """Return why Slurm has ended a job that had not failed itself, "" where it had; waits until Slurm knows."""
        began = time.monotonic()
        self.watch.hurry()
        while time.monotonic() - began < _RELEASE_SECONDS and self.watch.is_alive():
            state = self.watch.state
            if state is not None and self.watch.asked_at > began and state.state != "COMPLETING":
                break
            time.sleep(0.05)
        return "" if self.watch.state is None else words.interruption(self.watch.state, self.number)

    def cancel(self) -> None:
        """Take the job out of the queue, or end it; nothing is waited for."""
        self.watch.send(partial(commands.cancel, self.job))

    def close(self) -> None:
        """Wait until Slurm has freed the nodes, by force in the end, and take the job's files for Slurm away."""
        self.watch.hurry()
        if not self._released(_RELEASE_SECONDS):
            self.cancel()
            self._released(_RELEASE_SECONDS)
        self.watch.stop()
        if self.watch.ended:
            self.site.remove()

    def _released(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.watch.ended and self.watch.is_alive() and time.monotonic() < until:
            time.sleep(0.05)
        return self.watch.ended


class SlurmNodes(AgentNodes):
    """The nodes of a started job."""

    outlive_supervisor: ClassVar[bool] = True

    def __init__(
        self, job: Job, placement: Placement, context: Context, nodes: Sequence[AgentNode], slurm: SlurmJob,
        position: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(job, placement, context, nodes)
        self._slurm = slurm
        slurm.site.keeps = True  # until all is collected
        self._seen: dict[int, float] = {}
        self._printed = Tail(slurm.site.output, lambda: slurm.watch.ended, position)
        self.streams = (Stream(self._printed.pipe(), None, "out"),)

    def of_rank(self, place: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add what Slurm would tell the rank if it had started it, which some libraries read."""
        per_node = self._placement.local_size(place.node)
        slurm = {"PROCID": place.rank, "LOCALID": place.local_rank, "NODEID": place.node,
                 "NTASKS": len(self._placement.ranks), "NPROCS": len(self._placement.ranks),
                 "NTASKS_PER_NODE": per_node,
                 "TASKS_PER_NODE": f"{per_node}(x{self._placement.node_count})"}  # fmt: skip
        return super().of_rank(place, variables) | {f"SLURM_{name}": str(value) for name, value in slurm.items()}

    def poll(self) -> None:
        """Take what Slurm said that the user should act on."""
        super().poll()
        self.notices += self._slurm.watch.notices()

    def on_launcher_output(self, text: str) -> None:
        """Take srun's words."""
        self._slurm.listen(text)

    def signaled(self, name: str) -> None:
        """Let Slurm end what its agents did not."""
        if name == "KILL" and name in self._slurm.sent:
            self._slurm.cancel()
        self._slurm.sent.add(name)

    def explained(self, exit_: Exit) -> Exit | None:
        """Return the end of a rank with Slurm's word about it, where nobody else knows better."""
        lost = exit_.code is None and exit_.signal is None
        if exit_.evidence and not lost:
            return exit_
        if not lost and (exit_.signal not in ("TERM", "KILL") or self._slurm.sent):
            return exit_
        if exit_.rank not in self._seen:
            self._seen[exit_.rank] = time.monotonic()
            self._slurm.watch.hurry()
        if not self._asked_since(self._seen[exit_.rank]):
            return None
        return self._of_lost(exit_) if lost else self._of_killed(exit_)

    def _asked_since(self, moment: float) -> bool:
        """Say whether Slurm was asked since then and has made up its mind, or was given time enough."""
        watch = self._slurm.watch
        knows = watch.asked_at > moment and watch.state is not None and watch.state.state != "COMPLETING"
        return knows or time.monotonic() - moment > _CAUSE_SECONDS

    def _of_killed(self, exit_: Exit) -> Exit:
        state = self._slurm.watch.state
        if self._slurm.is_timed_out:  # it is COMPLETING for longer than is waited for
            state = JobState("TIMEOUT")
        if self._slurm.lacked_memory and exit_.signal == "KILL":
            state = JobState("OUT_OF_MEMORY")
        return dataclasses.replace(exit_, evidence=words.end(state) if state is not None else "")

    def _of_lost(self, exit_: Exit) -> Exit:
        """Return the end of a rank whose agent is gone, as far as Slurm knows it."""
        slurm, state = self._slurm, self._slurm.watch.state
        if state is None or not slurm.watch.ended or state.state == "NODE_FAIL" or slurm.watch.forgotten:
            return exit_
        if "KILL" in slurm.sent:
            return Exit(exit_.rank, None, "KILL")
        if state.state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE"):
            return Exit(exit_.rank, None, "TERM", words.end(state) if not slurm.sent else "")
        return dataclasses.replace(exit_, evidence=slurm.why_ended())

    def interrupted(self) -> str:
        """Return why Slurm has ended the job, where that is no failure of what ran."""
        return self._slurm.interruption()

    def handle(self) -> dict[str, Any]:
        """Return the job's number, its folder, and where its ranks are."""
        site = self._slurm.site
        return site.handle(self._slurm.job, site.link) | {
            "nodes": [{"host": node.host, "run": node.run} for node in self.nodes],
            "ranks": [[place.rank, place.node, place.local_rank] for place in self._placement.ranks],
        }

    def collect(self) -> None:
        """Bring results and outputs home when the job had a folder of its own."""
        try:
            stayed = self._slurm.site.collect(self._context.folder, len(self._placement.ranks))
        except OSError as error:
            first = error.args[0][0] if isinstance(error, shutil.Error) else (error.filename, "", error.strerror)
            raise LaunchFailed(
                f"Results cannot be copied from {self._slurm.site.job}: {first[0]}: {first[2]}.",
                code="slurm-results-not-collected",
                hint="The files that ranks wrote are still in that folder.",
            ) from error
        self.notices += [Notice("warning", text, "results-not-collected") for text in stayed]

    def close(self) -> None:
        """End the agents, and wait until Slurm has freed the nodes."""
        super().close()
        self._slurm.close()
        self._printed.stop()
        found = accounting.usage(self._slurm.job) if self._slurm.watch.ended else None
        if found is not None:
            self.notices.append(Notice("info", found.text(self._slurm.number), "slurm-accounting"))


def numbers(text: str) -> list[int]:
    """Return the numbers of "0,2-4"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return found

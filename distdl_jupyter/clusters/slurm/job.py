"""A submitted Slurm job and its nodes: a thread that polls it, and the causes of its ranks' exits.

Slurm's commands can take many seconds while its controller is busy or down, so only this thread polls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from distdl_jupyter.clusters.agents.agent import AgentNode, Host
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.agents.links import FolderLink, Tail
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, Exit, OutageNotifier, RunNotice, Stream
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.clusters.slurm.commands import JobState, SlurmFailed, UnknownJob
from distdl_jupyter.clusters.slurm.script import JobDirectory
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import Placement, RankSlot

#: Seconds between two queries, and after ``poll_soon``.
_POLL_SECONDS, _FAST_POLL_SECONDS = 3.0, 0.5
#: Seconds for which ``poll_soon`` stays in effect.
_FAST_PERIOD_SECONDS = 30.0
#: Seconds without a response after which the user is notified.
_OUTAGE_SECONDS = 5.0
#: Seconds to wait for Slurm's cause of an exit before the exit is reported without one.
_CAUSE_SECONDS = 5.0
#: Seconds to wait until Slurm has freed the nodes of an ended job.
_RELEASE_SECONDS = 15.0
#: The maximum number of bytes of batch output in the error of a failed start.
_MAX_OUTPUT_BYTES = 20_000
#: Slurm's exit "signal" if the node cannot open the output file. Slurm 24.11 creates the folder instead, and the script
#: detects that its files are missing (``script.NO_FILES_EXIT_CODE``).
_OUTPUT_FAILED_SIGNAL = 53
#: The state of a job that Slurm has purged; the name is not Slurm's.
_PURGED = "FORGOTTEN"
#: srun's messages about a lost node, and about the end of tasks, with its cause.
_NODE_LOST_PATTERN = re.compile(r"srun: error: Node failure on (\S+)")
_TASK_ENDED_PATTERN = re.compile(r"srun: error: \S+: tasks? ([\d,-]+): ([A-Z][^\n]*)")
#: slurmstepd's message about the time limit.
_TIME_LIMIT_MESSAGE = "DUE TO TIME LIMIT ***"
#: slurmstepd's messages about kills that the job's state does not show (cgroups; OverMemoryKill).
_OUT_OF_MEMORY_PATTERN = re.compile(r"slurmstepd\S*: error: .*(exceeded memory limit|oom.kill event)")


class SlurmJob(threading.Thread):
    """A thread that queries the state of one job until it ends or is closed, and the links to its agents."""

    def __init__(self, directory: JobDirectory, job: str) -> None:
        super().__init__(name="distdl-slurm", daemon=True)
        self.directory = directory
        self.job = job
        #: The last state and the time of its request (monotonic). The state is None before the first response.
        self.state: JobState | None = None
        self.requested_at = 0.0
        #: Whether the job has started; if it is pending after that, Slurm has requeued it.
        self.has_run = False
        self.sent_signals: set[str] = set()
        #: Whether slurmstepd has killed a process because of its memory.
        self.is_out_of_memory = False
        #: Whether slurmstepd has reported the time limit.
        self.is_timed_out = False
        self._hosts: list[str] = []
        self._lost_hosts: set[str] = set()
        self._ended_agents: dict[int, str] = {}
        self._fast_until = 0.0
        self._outage = OutageNotifier(_OUTAGE_SECONDS)
        self.take_notices = self._outage.take_notices
        self._blocked_codes: set[str] = set()
        self._cancel_requested = self._stop_requested = False
        self._wake = threading.Event()

    # the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Poll the job's state, and cancel the job if requested."""
        while not self._stop_requested:
            self._wake.clear()
            self.query()
            if self.has_ended and not self._cancel_requested:
                return
            self._wake.wait(_FAST_POLL_SECONDS if time.monotonic() < self._fast_until else _POLL_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, was purged, or was requeued by Slurm."""
        extra_states = (_PURGED, commands.REQUEUED_AFTER_START)
        return self.state is not None and (self.state.has_ended or self.state.state in extra_states)

    def poll_soon(self) -> None:
        """Poll immediately, and often for some seconds."""
        self._fast_until = time.monotonic() + _FAST_PERIOD_SECONDS
        self._wake.set()

    def cancel(self) -> None:
        """Remove the job from the queue, or end it, without waiting."""
        self._cancel_requested = True
        self.poll_soon()

    def query(self) -> None:
        """Cancel the job if requested, and query its state once."""
        requested_at = time.monotonic()
        try:
            if self._cancel_requested:
                commands.cancel(self.job)
                self._cancel_requested = False
            try:
                state = commands.load_state(self.job)
            except UnknownJob:
                state = commands.load_final_state(self.job) or JobState(_PURGED)
            if state.is_pending and self.has_run:
                # Each attempt is a separate Slurm job, so Slurm must not restart this one.
                commands.cancel(self.job)
                state = JobState(commands.REQUEUED_AFTER_START)
        except SlurmFailed as error:
            message = f"Slurm's controller does not respond. A running job continues. ({error.message})"
            self._outage.record_failure(requested_at, RunNotice("warning", message, "slurm-silent"))
            return
        self.has_run = self.has_run or state.state == "RUNNING"
        self.requested_at, self.state = requested_at, state
        self._outage.record_response(RunNotice("info", "Slurm's controller responds again.", "slurm-answers"))
        notice = commands.make_blocked_notice(state, self.job) if state.is_pending else None
        if notice is not None and notice.code not in self._blocked_codes:
            self._blocked_codes.add(notice.code)
            self._outage.put(notice)

    # nodes ------------------------------------------------------------------------------------

    def list_hosts(self) -> list[str]:
        """Return the nodes in Slurm's order, or [] before the job has started. Raises SlurmFailed."""
        state = self.state
        if not self._hosts and state is not None and state.state == "RUNNING" and state.nodes:
            self._hosts = commands.run("scontrol", "show", "hostnames", state.nodes).split()
        return self._hosts

    def connect(self, node: int, host: str, *, takeover: bool = False) -> Connection:
        """Return an unstarted connection to the agent of a node. Raises LaunchFailed."""
        link = FolderLink(self.directory.run, node, partial(self.explain_loss, node, host), takeover=takeover)
        # Earlier supervisors sent more than one byte per request and channel, so their numbers are at most ``sent``.
        connection = Connection(Host(host, host), link, first_number=link.sent_bytes + 1)
        job_id = self.state.job_id if self.state is not None else self.job
        connection.shell = f"srun --overlap --jobid={job_id} --nodelist={host}"
        return connection

    def read_output(self) -> str:
        """Return the last ``_MAX_OUTPUT_BYTES`` bytes of the output of the batch script and srun."""
        with contextlib.suppress(OSError):
            return self.directory.output.read_bytes()[-_MAX_OUTPUT_BYTES:].decode(errors="replace")
        return ""

    def on_output(self, output: str) -> None:
        """Record lost nodes and ended agents from the messages of srun and slurmstepd."""
        for hosts in _NODE_LOST_PATTERN.findall(output):
            self._lost_hosts.update(hosts.split(","))
        self.is_timed_out = self.is_timed_out or _TIME_LIMIT_MESSAGE in output
        self.is_out_of_memory = self.is_out_of_memory or _OUT_OF_MEMORY_PATTERN.search(output) is not None
        for tasks, cause in _TASK_ENDED_PATTERN.findall(output):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", tasks):  # each node has one task
                for node in range(int(first), int(last or first) + 1):
                    self._ended_agents.setdefault(node, cause)

    # end of the job ---------------------------------------------------------------------------

    def explain_loss(self, node: int, host: str) -> str:
        """Return the reason why a node is lost, or "" while it is available."""
        if host in self._lost_hosts:
            return f"Slurm lost {host}."
        if self.has_ended:
            return self.explain_end()
        return f"The agent on {host} ended: {self._ended_agents[node]}." if node in self._ended_agents else ""

    def explain_end(self, *, started: bool = True) -> str:
        """Return the reason for the job's end as one sentence; ``started`` is whether its ranks were started."""
        state = self.state
        assert state is not None, "only its state shows that the job has ended"
        if state.state == _PURGED:
            was_queued = self.directory.link is not None and not self.has_run
            return f"Slurm no longer knows job {self.job}{'; it was canceled (scancel) in the queue' * was_queued}."
        if state.exit_signal == _OUTPUT_FAILED_SIGNAL or (not started and state.exit_code == script.NO_FILES_EXIT_CODE):
            folder = self.directory.job
            return f"The nodes cannot write to {folder}. Set the option 'directory' to a folder that all nodes share."
        if self.is_out_of_memory and state.state == "FAILED":
            state = dataclasses.replace(state, state="OUT_OF_MEMORY")
        reason = f" ({state.reason})" if state.reason else ""
        return commands.describe_end(state, self.job) or f"Slurm ended the job as {state.state}{reason}."

    def make_error(self) -> LaunchFailed:
        """Return the error for a job whose nodes could not be prepared."""
        if self.state is not None and self.has_ended:
            code = self.state.exit_code
            end = "" if code in (0, script.NO_FILES_EXIT_CODE) else f" Its script exited with code {code}."
            message = f"Slurm job {self.job} ended before its ranks started. {self.explain_end(started=False)}{end}"
            return LaunchFailed(message, code="slurm-job-ended-early", output=self.read_output())
        reasons = (self.explain_loss(node, host) for node, host in enumerate(self.list_hosts()))
        message = f"Slurm job {self.job} could not start on all nodes. {' '.join(filter(None, reasons))}"
        return LaunchFailed(message, code="slurm-nodes-not-ready", output=self.read_output())

    def knows_end(self, since: float) -> bool:
        """Return whether Slurm has reported a state with a cause since that time (monotonic)."""
        return self.requested_at > since and self.state is not None and self.state.state != "COMPLETING"

    def why_interrupted(self) -> str:
        """Wait until Slurm knows why the job ended; return the reason, or "" if the job failed."""
        requested_at = time.monotonic()
        self.poll_soon()
        self._wait(lambda: self.knows_end(requested_at))
        return "" if self.state is None else commands.describe_interruption(self.state, self.job)

    def close(self) -> None:
        """Wait until Slurm has freed the nodes, kill the job on a timeout, and remove the job's files for Slurm."""
        self.poll_soon()
        if not self._wait(lambda: self.has_ended):
            self.cancel()
            self._wait(lambda: self.has_ended)
        self._stop_requested = True
        self._wake.set()
        if self.is_alive():
            self.join(2.0)  # a command may be running
        if self.has_ended:
            self.directory.remove()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait at most ``_RELEASE_SECONDS`` for a condition while the thread runs; return whether it is met."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while not condition() and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return condition()


class SlurmNodes(AgentNodes):
    """The nodes of a started job."""

    outlives_supervisor: ClassVar[bool] = True

    def __init__(
        self, job: StagedJob, placement: Placement, context: Context, nodes: Sequence[AgentNode], slurm: SlurmJob,
        position: int = 0,
    ) -> None:  # fmt: skip
        # The agents inherit secret values from Slurm.
        variables = {name: value for name, value in context.variables.items() if name not in job.spec.secret_variables}
        super().__init__(job, placement, dataclasses.replace(context, variables=variables), nodes)
        self._slurm = slurm
        slurm.directory.has_uncollected_files = True  # until ``collect`` has copied them
        self._lost_at: dict[int, float] = {}
        self._output = Tail(slurm.directory.output, lambda: slurm.has_ended, position)
        self.streams = (Stream(self._output.open_stream(), None, "out"),)

    def get_rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the variables that Slurm would set for ranks, because some libraries read them."""
        per_node, total = self._placement.local_sizes[slot.node], len(self._placement.ranks)
        slurm: dict[str, int | str] = {"NTASKS": total, "NPROCS": total, "NTASKS_PER_NODE": per_node}
        slurm |= {"PROCID": slot.rank, "LOCALID": slot.local_rank, "NODEID": slot.node}
        slurm["TASKS_PER_NODE"] = f"{per_node}(x{self._placement.node_count})"
        variables = super().get_rank_variables(slot, variables)
        return variables | {f"SLURM_{name}": str(value) for name, value in slurm.items()}

    def poll(self) -> None:
        """Add the notices about Slurm."""
        super().poll()
        self.notices += self._slurm.take_notices()

    def on_launcher_output(self, text: str) -> None:
        """Read srun's messages."""
        self._slurm.on_output(text)

    def on_signal(self, name: str) -> None:
        """Kill the job through Slurm if the agents could not end it."""
        if name == "KILL" and name in self._slurm.sent_signals:
            self._slurm.cancel()
        self._slurm.sent_signals.add(name)

    def explain_exit(self, exit_: Exit) -> Exit | None:
        """Return the exit of a rank with Slurm's reason, or None while waiting for Slurm."""
        slurm = self._slurm
        is_lost = exit_.code is None and exit_.signal is None
        if not is_lost and (exit_.evidence or exit_.signal not in ("TERM", "KILL") or self._slurm.sent_signals):
            return exit_
        if exit_.rank not in self._lost_at:
            self._lost_at[exit_.rank] = time.monotonic()
            slurm.poll_soon()
        lost_at, state = self._lost_at[exit_.rank], slurm.state
        if not slurm.knows_end(lost_at) and time.monotonic() - lost_at <= _CAUSE_SECONDS:
            return None
        if not is_lost:
            if slurm.is_timed_out:  # the job can stay COMPLETING for a long time
                state = JobState("TIMEOUT")
            if slurm.is_out_of_memory and exit_.signal == "KILL":
                state = JobState("OUT_OF_MEMORY")
            cause = commands.describe_end(state, slurm.job) if state is not None else ""
            return dataclasses.replace(exit_, evidence=cause)
        if state is None or not slurm.has_ended or state.state in ("NODE_FAIL", _PURGED):
            return exit_
        if slurm.sent_signals:
            return Exit(exit_.rank, None, "KILL" if "KILL" in slurm.sent_signals else "TERM")
        return dataclasses.replace(exit_, evidence=slurm.explain_end())

    def why_interrupted(self) -> str:
        """Return why Slurm ended the job if the code did not fail."""
        return self._slurm.why_interrupted()

    def handle(self) -> dict[str, Any]:
        """Return the job's number, its folder, and the nodes of its ranks."""
        directory = self._slurm.directory
        return directory.handle(self._slurm.job, directory.link) | {
            "nodes": [{"host": node.host, "run": node.private_folder} for node in self.nodes],
            "ranks": [[slot.rank, slot.node, slot.local_rank] for slot in self._placement.ranks],
        }

    def collect(self) -> None:
        """Copy results and outputs back if the job had a separate folder."""
        directory = self._slurm.directory
        try:
            reasons = directory.collect(self._context.folder, len(self._placement.ranks))
        except OSError as error:
            message = f"Cannot copy the results from {directory.job}: {error.filename}: {error.strerror}."
            hint = "The files that ranks wrote are still in that folder."
            raise LaunchFailed(message, code="slurm-results-not-collected", hint=hint) from error
        self.notices += [RunNotice("warning", message, "results-not-collected") for message in reasons]

    def close(self) -> None:
        """End the agents, and wait until Slurm has freed the nodes."""
        super().close()
        self._slurm.close()
        self._output.stop()

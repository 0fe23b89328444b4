"""Slurm clusters: jobs wait in Slurm's queue, run on nodes that it selects, and continue without a supervisor.

Slurm's commands can take many seconds while its controller is busy or down, so only one thread for each job polls it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.agents.agent import AgentNode, Host, ReachError
from distdl_jupyter.clusters.agents.cluster import AgentCluster, preview_placement
from distdl_jupyter.clusters.agents.connection import AGENT_TIMEOUT, DEFAULT_DIRECTORY, Connection, end_all, start_all
from distdl_jupyter.clusters.agents.links import FolderLink, Tail
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, Exit, NodeCheck, NodeInfo, OutageNotifier, Run, RunNotice, Stream
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.clusters.slurm.commands import JobState, SlurmFailed, UnknownJob
from distdl_jupyter.clusters.slurm.script import JobDirectory, SlurmOptions
from distdl_jupyter.clusters.ssh import SshLink
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement, QueuedJob, QueueView, RankSlot
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder, create_id

#: Seconds between two queries; after ``poll_soon``, and for how long.
_QUERY_SECONDS, _FAST_QUERY_SECONDS, _FAST_PERIOD_SECONDS = 3.0, 0.5, 30.0
#: Seconds without a response after which the user is notified.
_OUTAGE_SECONDS = 5.0
#: Seconds to wait for Slurm's cause of an exit before the exit is reported without one.
_CAUSE_SECONDS = 5.0
#: Seconds to wait until Slurm has freed the nodes of an ended job, or ended a job that ``sweep`` has killed.
_RELEASE_SECONDS = 15.0
#: Seconds between two polls for the nodes.
_POLL_SECONDS = 0.1
#: The check of a node: seconds to wait for a free one, Slurm's time limit in minutes, and the timeout in seconds.
_NODE_SECONDS, _LIMIT_MINUTES, _CHECK_SECONDS = 5, 1, 12.0
#: The name of the checked node until the node itself reports one.
_NODE_NAME = "a node"
#: Python code that reads an agent's first program from standard input and runs it.
_RUN_PROGRAM = "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"
#: The maximum number of bytes of batch output in the error of a failed start.
_MAX_OUTPUT_BYTES = 20_000
#: Slurm's exit "signal" if the node cannot open the output file. Slurm 24.11 creates the folder instead, and the script
#: detects that its files are missing (``script.NO_FILES_EXIT_CODE``).
_OUTPUT_FAILED_SIGNAL = 53
#: The state of a job that Slurm has purged, and all states of an ended job whose names are not Slurm's.
_PURGED = "FORGOTTEN"
_UNOFFICIAL_ENDS = (_PURGED, commands.REQUEUED_AFTER_START)
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
        #: Whether slurmstepd has killed a process because of its memory, or reported the time limit.
        self.is_out_of_memory = self.is_timed_out = False
        self._hosts: list[str] = []
        self._lost_hosts: set[str] = set()
        self._ended_agents: dict[int, str] = {}
        self._fast_until = 0.0
        self._outage = OutageNotifier(_OUTAGE_SECONDS)
        self.take_notices = self._outage.take_notices
        self._blocked_codes: set[str] = set()
        self._cancel_requested = self._stop_requested = False
        self._wake = threading.Event()

    def run(self) -> None:
        """Poll the job's state, and cancel the job if requested."""
        while not self._stop_requested:
            self._wake.clear()
            self.query()
            if self.has_ended and not self._cancel_requested:
                return
            self._wake.wait(_FAST_QUERY_SECONDS if time.monotonic() < self._fast_until else _QUERY_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, was purged, or was requeued by Slurm."""
        return self.state is not None and (self.state.has_ended or self.state.state in _UNOFFICIAL_ENDS)

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
            exit_code, code = self.state.exit_code, "slurm-job-ended-early"
            message = f"Slurm job {self.job} ended before its ranks started. {self.explain_end(started=False)}"
            if exit_code not in (0, script.NO_FILES_EXIT_CODE):
                message += f" Its script exited with code {exit_code}."
        else:
            reasons = (self.explain_loss(node, host) for node, host in enumerate(self.list_hosts()))
            message = f"Slurm job {self.job} could not start on all nodes. {' '.join(filter(None, reasons))}"
            code = "slurm-nodes-not-ready"
        return LaunchFailed(message, code=code, output=self.read_output())

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


class SlurmCluster(AgentCluster):
    """Runs ranks on the nodes of a Slurm job, with one agent on each node."""

    name = "slurm"
    title = "Slurm"
    Options = SlurmOptions
    has_queue = True
    can_attach = True

    def __init__(self) -> None:
        super().__init__()
        self._slurm: SlurmJob | None = None
        self._interruption = ""

    def unavailable(self, options: SlurmOptions) -> str:
        """Return the remedy if Slurm's commands are missing."""
        return commands.explain_missing_commands()

    def process_count_per_node(self, options: SlurmOptions, *, use_gpu: bool | None) -> int:
        """Return the number of GPUs that a job uses on each node, or 1 if it uses none."""
        return max(1, options.gpus) if use_gpu is not False else 1

    def detail(self, options: SlurmOptions) -> str:
        """Return the partition and the number of GPUs per node."""
        partition = f"partition {options.partition}" if options.partition else "default partition"
        return f"{partition}, {options.gpus_per_node} GPUs per node" if options.gpus_per_node else partition

    def max_requeues(self, options: SlurmOptions) -> int:
        """Return how often an interrupted job is requeued."""
        return options.requeue

    def list_nodes(self, options: SlurmOptions) -> list[NodeInfo]:
        """Return the nodes of the partition. Raises DistDLError if Slurm does not respond."""
        return commands.list_nodes(options.partition)

    def list_queue(self, options: SlurmOptions) -> list[QueuedJob]:
        """Return this user's jobs in Slurm."""
        return commands.list_queue()

    def run_checks(
        self, options: SlurmOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check Slurm, a test submission and the nodes; if they pass, also the software of one free node."""
        if commands.explain_missing_commands():
            problem = "Slurm is not installed"
            return [NodeCheck("", "Slurm", "error", problem, commands.MISSING_REMEDY, "slurm-missing")]
        try:
            nodes = commands.list_nodes(options.partition)
        except commands.SlurmFailed as error:
            remedy = error.hint or "Check that Slurm's controller is running: scontrol ping"
            return [NodeCheck("", "Slurm", "error", error.message, remedy, error.code)]
        rows = [NodeCheck("", "Slurm", "ok", "the controller responds")]
        spec = JobSpec(id=create_id(), name="check", process_count_per_node=1)
        arguments = script.build_sbatch_arguments(spec, options, {}, Path("/tmp"), "check.out")  # noqa: S108 - not used
        try:
            commands.run("sbatch", "--test-only", *arguments, "--wrap=true")
            partition = f"partition {options.partition}" if options.partition else "the default partition"
            rows.append(NodeCheck("", "Submission", "ok", f"{partition} accepts jobs"))
        except commands.SlurmFailed as error:
            code, remedy = commands.explain_sbatch_error(error)
            rows.append(NodeCheck("", "Submission", "error", error.message, remedy, code))
        if down_nodes := [f"{node.name} ({node.detail})" for node in nodes if node.state == "down"]:
            text = f"{len(down_nodes)} of {len(nodes)} nodes are down: {listing(down_nodes)}"
            row = NodeCheck("", "Nodes", "warning", text, "Meanwhile, jobs run on the other nodes.", "slurm-node")
            if len(down_nodes) == len(nodes):
                remedy = "Ask the administrators, or set another partition."
                row = NodeCheck("", "Nodes", "error", "no node is up", remedy, "slurm-nodes")
            rows.append(row)
        else:
            rows.append(NodeCheck("", "Nodes", "ok", f"{plural(len(nodes), 'node')} up"))
        if any(check.level == "error" for check in rows):
            return rows
        return [*rows, *_check_software(options, modules, programs)]

    def preview(self, spec: JobSpec, options: SlurmOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Slurm names the nodes when the job starts."""
        return preview_placement(spec, options.gpus, options.gpus_per_node or "not set")

    def _connect(self, spec: JobSpec, options: SlurmOptions, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Submit the job, wait until Slurm starts it, and connect to its agents."""
        job = _find_submitted(context.handle, context) if context.handle is not None else None
        self._slurm = slurm = job or self._submit(spec, options, context)
        slurm.start()
        slurm.poll_soon()
        self._wait_until(slurm.list_hosts, "queue", context)
        for node, host in enumerate(slurm.list_hosts()):
            self._connections.append(slurm.connect(node, host, takeover=job is not None))
            self._connections[-1].start()
        self._wait_until(self._all_agents_connected, "stage", context)
        return spec, []

    def _submit(self, spec: JobSpec, options: SlurmOptions, context: Context) -> SlurmJob:
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        secrets = {name: context.variables[name] for name in spec.secret_variables if name in context.variables}
        try:
            script.require_containers(options)
            if directory.is_copied:
                context.report("stage", "copying the job's files")
            directory.write(context.folder, spec, options)
            context.report("queue", "submitting to Slurm")
            job = script.claim_task(directory, spec, options, secrets, context)
            if not job:
                extra = [*([f"--comment={spec.id}"] if spec.group else []), str(directory.batch)]
                output = directory.output.name
                arguments = script.build_sbatch_arguments(spec, options, secrets, directory.run, output, *extra)
                job = commands.submit(arguments, secrets)
                context.record_handle(directory.handle(job))
        except commands.SlurmFailed as error:
            directory.remove()
            code, remedy = commands.explain_sbatch_error(error)
            raise LaunchFailed(error.message, code=code, hint=remedy) from error
        except OSError as error:
            raise script.make_unusable_error(error, directory.job) from error
        return SlurmJob(directory, job)

    def _all_agents_connected(self) -> bool:
        return all(connection.handshake_done.is_set() for connection in self._connections)

    def _wait_until(self, condition: Callable[[], object], phase: str, context: Context) -> None:
        """Wait for ``condition`` and report why the job has not started. Raises LaunchFailed if the job ends."""
        slurm = self._slurm
        assert slurm is not None, "a job was submitted"
        while not condition():
            for notice in slurm.take_notices():
                context.note(notice)
            if self._connections:
                slurm.on_output(slurm.read_output())
            if slurm.has_ended or any(connection.lost for connection in self._connections):
                raise slurm.make_error()
            state, text = slurm.state, "waiting for its agents"
            if state is None:
                text = "submitted"
            elif state.is_pending:
                text = commands.describe_waiting(state)
                reason = f"Slurm job {slurm.job}: {text}"
                context.note_position(QueueView(position=0, of=0, why=reason, host="Slurm", is_fixed=True))
            context.report(phase, f"Slurm job {slurm.job}: {text}")
            time.sleep(_POLL_SECONDS)

    def _make_job(self, spec: JobSpec, options: SlurmOptions, context: Context) -> StagedJob:
        """Return the job's files as the nodes see them."""
        directory = script.JobDirectory(context.folder, options.directory, context.restart)
        spec = dataclasses.replace(spec, working_directory="")
        # Agents use ``directory`` for data on their local disks.
        return StagedJob(spec, JobFolder(directory.job), dataclasses.replace(options, directory=options.data_directory))

    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> SlurmNodes:
        assert self._slurm is not None, "the nodes are connected"
        slurm, self._slurm = self._slurm, None
        return SlurmNodes(job, placement, context, self._nodes, slurm)

    def _release_nodes(self) -> None:
        if self._slurm is not None:
            state = self._slurm.state
            if state is not None and not state.is_pending:  # canceling it first would change the reason
                self._interruption = self._slurm.why_interrupted()
            if not self._connections or not self._all_agents_connected():
                self._slurm.cancel()
            super()._release_nodes()
            self._slurm.close()
            self._slurm = None

    def why_interrupted(self) -> str:
        """Return why Slurm ended the job before its ranks ran."""
        return self._interruption

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read_offsets: Mapping[tuple[int, str], int]
    ) -> Run:
        """Connect to the agents of a started job through their files. Raises LaunchFailed if its folder was deleted."""
        slurm = _find_submitted(handle, context)
        if slurm is None:
            raise LaunchFailed("The array task of the job belongs to another trial.", code="slurm-task-taken")
        slurm.has_run = True
        slurm.start()
        hosts = [str(node["host"]) for node in handle["nodes"]]
        connections = [slurm.connect(node, host, takeover=True) for node, host in enumerate(hosts)]
        nodes = [
            AgentNode(connection, str(slurm.directory.job), "", str(node["run"]))
            for connection, node in zip(connections, handle["nodes"], strict=True)
        ]
        machine.raise_file_limit(4 * spec.process_count)
        slots = (RankSlot(rank, node, hosts[node], local_rank) for rank, node, local_rank in handle["ranks"])
        placement = Placement(tuple(slots), address="", ports=(), interface="")
        job = self._make_job(spec, SlurmOptions(**spec.cluster_options), context)
        position = slurm.directory.output.stat().st_size
        slurm_nodes = SlurmNodes(job, placement, context, nodes, slurm, position)
        slurm.on_output(slurm.read_output())
        run = agent_run.resume(placement, context, slurm_nodes, handle, read_offsets)
        for connection in connections:
            connection.start()
        return run

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Kill the job and wait until Slurm has ended it; without a handle, find it by name. Raises SlurmTimeout."""
        if "link" in handle and not script.points_to(Path(handle["link"]), Path(handle["folder"], handle["run"])):
            return []
        jobs = [str(handle["slurm_job"])] if handle.get("slurm_job") else commands.find_jobs(job_id)
        running_jobs = [job for job in jobs if not commands.has_ended(job)]
        for job in running_jobs:
            # A plain scancel would send TERM first and wait (KillWait).
            for arguments in (("--signal=KILL", f"{job}.0"), ("--signal=KILL", "--batch", job), (job,)):
                commands.cancel(*arguments)
            deadline = time.monotonic() + _RELEASE_SECONDS
            while not commands.has_ended(job) and time.monotonic() < deadline:
                time.sleep(0.2)
        return [f"Slurm job {job}" for job in running_jobs]

    def close_group(self, group: Group, options: SlurmOptions) -> None:
        """Remove the unclaimed tasks of a sweep's job array from the queue."""
        script.close_array(group)


def _find_submitted(handle: Mapping[str, Any], context: Context) -> SlurmJob | None:
    """Return the job that another supervisor submitted, or None if another trial has claimed its array task.

    Raises LaunchFailed if its folder was deleted.
    """
    directory = str(Path(str(handle["folder"])).parent) if handle.get("copied") else ""
    files = script.JobDirectory(context.folder, directory, context.restart)
    if not files.run.is_dir():
        raise LaunchFailed(f"The job's folder for Slurm no longer exists: {files.run}.", code="slurm-folder-gone")
    if "link" in handle:
        with contextlib.suppress(OSError):  # the array's folder was deleted
            files.claim_task(Path(handle["link"]))
        if files.link is None:
            return None
    return SlurmJob(files, str(handle["slurm_job"]))


def _check_software(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Check a free node with an agent that srun starts there."""
    python = options.python or ("python3" if options.container_image else sys.executable)
    selection = {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint")}
    command = [
        "srun", "--quiet", "--unbuffered", "--job-name=distdl-check", "--nodes=1", "--ntasks=1",
        f"--immediate={_NODE_SECONDS}", f"--time={_LIMIT_MINUTES}", "--mpi=none", "--export=NONE", "--chdir=/",
        *(f"--{name}={value}" for name, value in selection.items() if value),
        *script.build_container_arguments(options),
        "/bin/bash", "-lc", f'{options.setup}\nexec "$0" -c "$1"', python, _RUN_PROGRAM,
    ]  # fmt: skip
    program = environment.build_first_input(python, DEFAULT_DIRECTORY, [AGENT_TIMEOUT]).partition(b"\n")[2]
    try:
        link = SshLink(_NODE_NAME, command, commands.build_environment())
        connections = start_all([(Host(_NODE_NAME, ""), link)], program)
    except ReachError as error:
        if re.search("immediate|requested nodes are busy", error.reason, re.IGNORECASE):
            return [NodeCheck("", "Packages", "info", "nodes were not checked: no node is free")]
        message = f"nodes were not checked. {error.reason}"
        remedy = "Check that this command works: srun hostname"
        return [NodeCheck("", "Packages", "warning", message, remedy, "slurm-packages")]
    try:
        result = checkup.check_hosts(connections, [], options, modules, programs, seconds=_CHECK_SECONDS)
    finally:
        end_all(connections)
    name = str(result.facts.get(_NODE_NAME, {}).get("host") or _NODE_NAME)
    rows = [dataclasses.replace(check, node=name) if check.node == _NODE_NAME else check for check in result.checks]
    # srun uses no host keys, one node needs no common network, and the files of jobs are not on this node.
    return [check for check in rows if check.what not in ("Host key", "Network", "Code")]

"""Slurm's commands, their output, including accounting (slurmdbd), and its terms as text for users, with remedies.

The default output is for people, so commands request fields by name, and ``script.build_job_name`` never returns a name
that looks like a field. Many sites have no accounting, and accounting can be down while Slurm works; jobs do not wait
for it. This module must not depend on jobs of this package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdl_jupyter.clusters.base import NodeInfo, NodeState, RunNotice
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import duration, size
from distdl_jupyter.core.queue import QueuedJob

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
#: Variables of an allocation that Slurm's commands inherit; all others would become options of the new job.
_INHERITED = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS"))
#: Timeout of a command in seconds; sbatch may run slow checks that the site has added.
_COMMAND_SECONDS = 30.0
#: Timeout of a query in seconds.
_QUERY_SECONDS = 8.0
_NO_RESPONSE = re.compile(
    r"unable to contact slurm controller|connection (refused|timed out)|timed out on send/recv|zero bytes were"
    r"|socket timed out|unexpected message received|controller not responding",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)
_ENDED = re.compile("COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|BOOT_FAIL|DEADLINE|REVOKED")
#: The fields of sacct that ``load_accounting`` reads.
_SACCT_FIELDS = "JobID,State,ExitCode,ElapsedRaw,MaxRSS,End"


class SlurmFailed(DistDLError):
    """A command of Slurm failed."""

    code = "slurm-refused"


class SlurmTimeout(SlurmFailed):
    """Slurm's controller does not respond."""

    code = "slurm-silent"


class UnknownJob(SlurmFailed):
    """Slurm does not know the job, or has purged it."""

    code = "slurm-job-unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job. ``state`` and ``reason`` are Slurm's terms; ``reason`` is "" without one.

    ``number`` is the plain job id, also for a started array task, because srun does not accept "12_3". A job is
    ``is_preempted`` as soon as Slurm has requested its end, before its state changes. Only accounting has ``seconds``
    (run time) and ``memory`` (bytes; sacct's MaxRSS: the maximum over the nodes, each with all of its ranks).
    """

    state: str
    reason: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    nodes: str = ""
    number: str = ""
    is_preempted: bool = False
    seconds: int = 0
    memory: int = 0

    @property
    def pending(self) -> bool:
        """Whether the job has not started any process yet."""
        return self.state in ("PENDING", "REQUEUED", "CONFIGURING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD")

    @property
    def has_ended(self) -> bool:
        """Whether all of its ranks have ended, as far as Slurm knows."""
        return _ENDED.fullmatch(self.state) is not None


def why_commands_missing() -> str:
    """Return a sentence with the remedy if Slurm's commands are missing, else ""."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    remedy = "Use a login node of the cluster, or install the Slurm client (Debian: apt-get install slurm-client)."
    return f"Slurm's commands are not on the PATH ({', '.join(missing)}). {remedy}" if missing else ""


def build_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of Slurm's commands."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _INHERITED
    }
    return {**inherited, **(variables or {})}


def run(*command: str, variables: Mapping[str, str] | None = None, timeout: float = _COMMAND_SECONDS) -> str:
    """Run a Slurm command and return its output. Raises SlurmFailed, SlurmTimeout, UnknownJob."""
    try:
        env = build_environment(variables)
        result = subprocess.run(
            command, input="", capture_output=True, text=True, env=env, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmTimeout(f"Slurm did not respond to {command[0]} within {timeout:g} s.") from None
    except OSError as error:
        text = why_commands_missing() or f"{command[0]} cannot be started: {error.strerror}."
        raise SlurmFailed(text, code="slurm-command-missing") from None
    if result.returncode == 0:
        return result.stdout
    output = result.stderr.strip() or result.stdout.strip()
    if "could not establish a configuration source" in output.lower():  # neither slurm.conf nor a server with it
        message = "Slurm is not configured on this machine."
        hint = "Use a login node of the cluster, or set SLURM_CONF to its slurm.conf."
        raise SlurmFailed(message, code="slurm-not-configured", hint=hint)
    cls = SlurmTimeout if _NO_RESPONSE.search(output) else UnknownJob if _UNKNOWN_JOB.search(output) else SlurmFailed
    # The last error message, without "sbatch: error:".
    lines = [re.sub(r"^(\w+: )?((error|fatal|warning): )?", "", line).strip() for line in output.splitlines()]
    last_line = next((line for line in reversed(lines) if line), "no error message")
    raise cls(f"{command[0]} failed: {last_line.rstrip('.')}.")


def submit(arguments: Sequence[str], secrets: Mapping[str, str]) -> str:
    """Submit a script, the last argument; return the job's number. Raises SlurmFailed.

    Values of ``secrets`` are passed in sbatch's environment; ``arguments`` name them.
    """
    output = run("sbatch", "--parsable", *arguments, variables=secrets).strip()
    if not re.fullmatch(r"\d+(;.*)?", output):  # the name of the cluster may follow
        raise SlurmFailed(f"sbatch printed {output[:200]!r} instead of a job ID.", code="sbatch-answer-invalid")
    return output.partition(";")[0]


def load_state(job: str) -> JobState:
    """Return the state of a job; for an array, of an unfinished task, or of the first if all have ended.

    Raises UnknownJob, SlurmTimeout.
    """
    output = run("scontrol", "show", "job", "--oneliner", job, timeout=_QUERY_SECONDS).strip()
    states = [parse_state(line) for line in output.split("\n")]
    return next((state for state in states if not state.has_ended), states[0])


def parse_state(line: str) -> JobState:
    """Return the state in a line of ``scontrol show job --oneliner``."""
    fields = dict(field.partition("=")[::2] for field in line.split(" ") if "=" in field)
    fields = {name: "" if value in ("None", "(null)") else value for name, value in fields.items()}
    state, is_preempted = fields.get("JobState", "").rstrip("+"), bool(fields.get("PreemptTime"))
    if state == "FAILED" and is_preempted:
        state = "PREEMPTED"  # the job exited on Slurm's SIGTERM within the grace time
    reason, nodes, number = (fields.get(name, "") for name in ("Reason", "NodeList", "JobId"))
    return JobState(state, reason, *_split_code(fields.get("ExitCode", "")), nodes, number, is_preempted)


def has_ended(job: str) -> bool:
    """Return whether a job, or all tasks of an array, have ended or were purged. Raises SlurmTimeout."""
    try:
        return load_state(job).has_ended
    except UnknownJob:
        return True


def kill(job: str) -> None:
    """Kill the agents and the batch script of a job, which may already be ending, and then cancel the job.

    ``scancel`` alone would send TERM first and wait (KillWait). Raises SlurmTimeout.
    """
    for arguments in (("--signal=KILL", f"{job}.0"), ("--signal=KILL", "--batch", job), (job,)):
        cancel(*arguments)


def cancel(*arguments: str) -> None:
    """Run scancel for a job, which may have ended. Raises SlurmTimeout."""
    try:
        run("scancel", *arguments)
    except SlurmTimeout:
        raise
    except SlurmFailed:
        return


def find_jobs(name: str) -> list[str]:
    """Return the ids of this user's jobs whose comment is ``name`` or whose name ends with it. Raises SlurmFailed."""
    output = run("squeue", "--noheader", "--me", "--format=%i|%k|%j")
    rows = [line.strip().split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return [number for number, comment, job_name in rows if name == comment or job_name.endswith(name)]


def load_accounting(job: str, timeout: float = 0.0) -> JobState | None:
    """Return the final state and the resource usage of an ended job, None if accounting does not know them.

    slurmctld reports the end of the job, and then of its steps, to accounting with a delay; wait for that at most
    ``timeout`` seconds.
    """
    command = ("sacct", "--noheader", "--parsable2", "--jobs", job, f"--format={_SACCT_FIELDS}")
    deadline = time.monotonic() + timeout
    while True:
        try:
            lines = run(*command, timeout=_QUERY_SECONDS).splitlines()
        except SlurmFailed:
            return None
        rows = [line.split("|") for line in lines if line.count("|") == _SACCT_FIELDS.count(",")]
        if (rows and all(end != "Unknown" for *_, end in rows)) or time.monotonic() >= deadline:
            break
        time.sleep(0.3)
    for id_, state_, exit_, seconds, _, end in rows:
        if id_ == job and end != "Unknown" and state_.strip():
            # MaxRSS is "2956K" or "1.5G" (powers of 1024), or empty.
            peaks = (re.match(r"([\d.]+)([KMGTP]?)", row[4]) for row in rows)
            memory = max(
                (int(float(peak[1]) * 1024 ** " KMGTP".find(peak[2] or " ")) for peak in peaks if peak), default=0
            )
            return JobState(state_.split()[0], "", *_split_code(exit_), seconds=parse_number(seconds), memory=memory)
    return None


# fields of the output ---------------------------------------------------------------------------


def parse_number(text: str) -> int:
    """Return the number at the start of a text, 0 without one."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def count_gpus(gres: str) -> tuple[int, str]:
    """Return number and type of GPUs from Slurm's ``gpu:a100:4(S:0-1)`` or from ``a100:4`` or ``4``."""
    count, names = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = part.removeprefix("gpu:").split(":")
        if (part.startswith("gpu") or ":" not in gres or not gres.count("gpu")) and parts[-1].isdigit():
            count += int(parts[-1])
            names += parts[:-1]
    return count, ", ".join(dict.fromkeys(names))


def _split_code(text: str) -> tuple[int, int]:
    """Return exit code and signal of Slurm's "code:signal"."""
    code, _, signal_ = text.partition(":")
    return parse_number(code), parse_number(signal_)


# text for users: the reasons of squeue(1), "JOB REASON CODES", and the states of "JOB STATE CODES" ------

#: The most frequent reasons why a job waits; any other reason is shown as Slurm's term only.
_REASONS = {
    "": "waiting for Slurm to schedule it",
    "Resources": "waiting for free nodes",
    "Priority": "waiting for jobs with higher priority",
    "Dependency": "waiting for a job that must end first",
    "JobArrayTaskLimit": "waiting for other tasks of its array",
    "QOSMaxJobsPerUserLimit": "waiting for your other jobs to end",
}
#: Frequent reasons that keep a job from starting until something changes: the problem, then the remedy.
_BLOCKERS = {
    "PartitionTimeLimit": "its time limit exceeds that of the partition. Lower time_limit, or set another partition.",
    "PartitionNodeLimit": "it requests too many nodes for the partition. Lower node_count, or set another partition.",
    "PartitionDown": "the partition is down. Wait for the administrators, or set another partition.",
    "BadConstraints": "no node meets its requirements. Check constraint, gpus_per_node and cpus_per_task.",
    "AccountNotAllowed": "the account may not use the partition. Set another account or partition.",
    "QOSNotAllowed": "the quality of service is not allowed for this job. Set another qos or partition.",
    "JobHeldUser": "it is held by you. Release it: scontrol release {job}",
    "JobHeldAdmin": "it is held by an administrator. Ask the administrators.",
    "launch_failed_requeued_held": "its start failed and Slurm holds it back. Ask the administrators for the reason.",
    "QOSMaxWallDurationPerJobLimit": "its time limit exceeds that of the quality of service. Lower time_limit.",
    "AssocMaxWallDurationPerJobLimit": "its time limit exceeds that of your account. Lower time_limit.",
}
_NODES_DOWN = ("ReqNodeNotAvail", "Nodes_required")
#: Prefixes of the reasons for limits on the resources that a user may have at the same time.
_LIMIT_PREFIXES = ("QOSMax", "QOSMin", "AssocMaxCpuPer", "AssocMaxNodePer", "AssocMaxGRESPer")

#: This package's name for the state of a job that Slurm has requeued after its start.
REQUEUED = "QUEUED_AGAIN"
_REQUEUE_HINT = "To resume such jobs automatically, set requeue."
#: Final states that are not failures of the code. With ``requeue``, a new Slurm job continues.
_INTERRUPTIONS = {
    "TIMEOUT": "Slurm job {job} hit its time limit (TIMEOUT). Raise time_limit, or set requeue and save checkpoints.",
    REQUEUED: f"Slurm requeued job {{job}} (scontrol requeue). {_REQUEUE_HINT}",
    "PREEMPTED": f"Slurm gave the nodes of job {{job}} to a job with higher priority (PREEMPTED). {_REQUEUE_HINT}",
    "NODE_FAIL": "Slurm lost a node of job {job} (NODE_FAIL).",
    "BOOT_FAIL": "A node of Slurm job {job} did not boot (BOOT_FAIL).",
}
_FINAL_STATES = _INTERRUPTIONS | {
    "CANCELLED": "Slurm job {job} was canceled outside of this package (scancel).",
    "OUT_OF_MEMORY": "Slurm killed job {job} because it exceeded its memory (OUT_OF_MEMORY). "
    "Request more memory with extra, for example --mem=64G.",
    "DEADLINE": "Slurm job {job} reached its deadline (DEADLINE).",
}
_EXTRA_HINT = "Remove it from the option extra."
#: The remedy for an account or a QOS that sbatch rejects.
_LIST_HINT = "or set it to a value that is listed by: sacctmgr show assoc user=$USER format=account,qos"
_NODE_HINT = "Request fewer cores or GPUs, or set partition."
#: Errors of sbatch: the message, the code and the remedy.
REFUSAL_REMEDIES = (
    ("invalid partition", "slurm-partition-invalid", "Set partition to one that is listed by: sinfo -o %P"),
    ("invalid account", "slurm-account-not-allowed", f"Remove the option account, {_LIST_HINT}"),
    ("invalid qos", "slurm-qos-not-allowed", f"Remove the option qos, {_LIST_HINT}"),
    ("time limit", "slurm-time-limit", "Lower time_limit."),
    ("node count", "slurm-node-count", "Lower node_count."),
    ("node configuration is not available", "slurm-nodes-insufficient", _NODE_HINT),
    ("invalid generic resource", "slurm-gpus-invalid", "Set gpus_per_node to a value that is listed by: sinfo -o %G"),
    ("invalid feature", "slurm-constraint-invalid", "Set constraint to features that are listed by: sinfo -o %f"),
    ("more processors", "slurm-nodes-insufficient", "Request fewer processes or cores per node."),
    ("unrecognized option", "slurm-extra-invalid", _EXTRA_HINT),
    ("invalid option", "slurm-extra-invalid", _EXTRA_HINT),
    ("contact slurm controller", "slurm-silent", "Try again when Slurm's controller responds to: scontrol ping"),
)


def describe_waiting(state: JobState) -> str:
    """Return why a pending job waits: "waiting for free nodes (Resources)"."""
    if state.state == "CONFIGURING":
        return "its nodes are being started (CONFIGURING)"
    reason = state.reason.split(",")[0]
    default = "waiting for nodes that are down or reserved" if reason.startswith(_NODES_DOWN) else "waiting"
    text = _BLOCKERS[reason].partition(". ")[0] if reason in _BLOCKERS else _REASONS.get(reason, default)
    return f"{text} ({state.reason})" if state.reason else text


def make_blocked_notice(state: JobState, job: str) -> RunNotice | None:
    """Return the notice for a job that cannot start without a change, None for a job that only waits in the queue."""
    reason = state.reason.split(",")[0]
    if reason in _BLOCKERS:
        problem, _, remedy = _BLOCKERS[reason].partition(". ")
        text = f"Slurm job {job} cannot start, because {problem} ({reason}). {remedy.format(job=job)}"
    elif reason.startswith(_LIMIT_PREFIXES):
        text = f"Slurm job {job} exceeds what you may use at the same time ({reason}). Request fewer nodes or GPUs."
    elif reason.startswith(_NODES_DOWN):
        text = f"Slurm job {job} waits for nodes that are down, drained or reserved ({reason}). "
        return RunNotice("warning", text + "Wait, or request another partition or fewer nodes.", "nodes-down")
    else:
        return None
    return RunNotice("warning", text, reason)


def describe_end(state: JobState, job: str) -> str:
    """Return the cause in Slurm's final state with its remedy, "" if it only reflects the exit codes."""
    return _FINAL_STATES.get(state.state, "").format(job=job)


def describe_interruption(state: JobState, job: str) -> str:
    """Return the sentence about the interruption that ended a job, "" for any other end."""
    state_name = "PREEMPTED" if state.is_preempted and not state.has_ended else state.state
    sentence = _INTERRUPTIONS.get(state_name, "").format(job=job).partition(". ")[0]
    return f"{sentence.rstrip('.')}." if sentence else ""


def describe_usage(state: JobState, job: str) -> str:
    """Return the final state and the resource usage of a job as a sentence."""
    exit_text = f"exit code {state.exit_code}" if not state.exit_signal else f"signal {state.exit_signal}"
    memory = f", peak memory per node {size(state.memory)}" if state.memory else ""
    cause = f" {describe_end(state, job)}" if state.state == "OUT_OF_MEMORY" else ""
    return f"Slurm job {job} ended as {state.state} after {duration(state.seconds)}, {exit_text}{memory}.{cause}"


def explain_refusal(error: SlurmFailed) -> tuple[str, str]:
    """Return the code and the remedy for an error of sbatch."""
    matches = ((code, remedy) for message, code, remedy in REFUSAL_REMEDIES if message in error.message.lower())
    return next(matches, (error.code, error.hint))


# nodes and the queue ----------------------------------------------------------------------------

_DOWN = ("down", "drain", "fail", "error", "unk", "no_respond", "perfctrs", "maint", "powered_down", "power_down")
_STARTING_STATES = ("powering_up", "boot", "reboot", "configuring")
_USE_DETAILS = {"mixed": "partly in use", "allocated": "in use"}
#: States of jobs that have nodes.
_RUNNING_STATES = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def list_nodes(partition: str) -> list[NodeInfo]:
    """Return the nodes of one partition, or of all. Raises SlurmFailed."""
    filters = [f"--partition={partition}"] if partition else []
    output = run("sinfo", "--noheader", "--Node", *filters, "--format=%N|%T|%c|%O|%G|%E")
    rows = ([field.strip() for field in line.split("|", 5)] for line in output.splitlines() if line.count("|") >= 5)
    return list({row[0]: parse_node(*row) for row in rows}.values())


def parse_node(name: str, slurm_state: str, cores: str, load: str, gres: str, reason: str) -> NodeInfo:
    """Return the description of a node from sinfo's fields."""
    base_state, is_silent = slurm_state.lower().rstrip("*~#!%$@^-"), slurm_state.endswith("*")
    state: NodeState = "starting" if base_state.startswith(_STARTING_STATES) else "up"
    detail = _USE_DETAILS.get(base_state, base_state)
    if is_silent or base_state.startswith(_DOWN):
        state = "down"
        detail = f"{base_state}: {reason}" if reason not in ("none", "") else base_state
        detail += " (no response to Slurm)" if is_silent else ""
    gpus, gpu_name = count_gpus(gres)
    cpu_load = round(float(load), 1) if re.fullmatch(r"\d+(\.\d+)?", load) else None
    return NodeInfo(name, state, detail, gpus, gpu_name, parse_number(cores), load=cpu_load)


def list_queue() -> list[QueuedJob]:
    """Return this user's jobs in Slurm: running jobs, then waiting jobs, by Slurm's priority. Raises SlurmFailed."""
    # The name is last because it may contain the separator.
    output = run("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%r|%Q|%D|%C|%b|%P|%j")
    jobs = []
    for line in (line for line in output.splitlines() if line.count("|") >= 8):
        id_, state, reason, priority, nodes, cores, gres, partition, name = line.split("|", 8)
        is_running, count = state in _RUNNING_STATES, parse_number(nodes)
        job = QueuedJob(
            id=id_,
            name=name,
            runs=is_running,
            why="" if is_running else describe_waiting(JobState(state, "" if reason in ("None", "(null)") else reason)),
            priority=parse_number(priority),
            nodes=count,
            cores=parse_number(cores),
            gpus=count_gpus(re.sub(r"gres[:/]", "", gres))[0] * count,
            partition=partition,
        )
        jobs.append(job)
    return sorted(jobs, key=lambda job: (not job.runs, -job.priority, parse_number(job.id)))

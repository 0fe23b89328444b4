"""Slurm's reasons, states, nodes and queue as text for users, with remedies for problems.

The reasons are those of squeue(1), "JOB REASON CODES"; the states those of "JOB STATE CODES".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from distdl_jupyter.clusters.base import NodeInfo, NodeState, RunNotice
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.clusters.slurm.commands import JobState
from distdl_jupyter.clusters.slurm.script import SlurmOptions
from distdl_jupyter.core.humanize import duration, size
from distdl_jupyter.core.queue import Holding, QueuedJob, QueueView

_REASONS = {
    "": "waiting for Slurm to schedule it",
    "Resources": "waiting for free nodes",
    "Priority": "waiting for jobs with higher priority",
    "Dependency": "waiting for a job that must end first",
    "BeginTime": "waiting for its start time",
    "Reservation": "waiting for its reservation",
    "Licenses": "waiting for a license",
    "Prolog": "waiting for the nodes' prolog",
    "Cleaning": "waiting for the nodes to be cleaned up",
    "JobArrayTaskLimit": "waiting for other tasks of its array",
    "QOSMaxJobsPerUserLimit": "waiting for your other jobs to end",
    "AssocMaxJobsLimit": "waiting for other jobs of your account to end",
}
#: Reasons that keep a job from starting until something changes: the problem and the remedy.
_NEVER = {
    "PartitionTimeLimit": ("its time limit is longer than the partition allows",
                           "Lower time_limit, or set another partition."),
    "PartitionNodeLimit": ("it requests more nodes than the partition has or allows",
                           "Lower node_count, or set another partition."),
    "PartitionDown": ("the partition is down", "Wait for the administrators, or choose another partition."),
    "PartitionInactive": ("the partition does not start jobs at present", "Choose another partition."),
    "PartitionConfig": ("the partition's settings do not allow it", "Choose another partition."),
    "BadConstraints": ("no node meets its requirements", "Check constraint, gpus_per_node and cpus_per_task."),
    "DependencyNeverSatisfied": ("a job that it depends on has failed", "Change extra and submit it again."),
    "InvalidAccount": ("the account is not valid", "Set the option account."),
    "AccountNotAllowed": ("the account may not use the partition", "Set another account or partition."),
    "InvalidQOS": ("the quality of service is not valid", "Set the option qos."),
    "QOSNotAllowed": ("the quality of service is not allowed for this job", "Set another qos or partition."),
    "JobHeldUser": ("it is held by you", "Release it: scontrol release {job}"),
    "JobHeldAdmin": ("it is held by an administrator", "Ask the administrators."),
    "launch_failed_requeued_held": ("its start failed and Slurm holds it back",
                                    "Ask the administrators why the node failed."),
    "QOSMaxWallDurationPerJobLimit": ("its time limit is longer than the quality of service allows",
                                      "Lower time_limit."),
    "AssocMaxWallDurationPerJobLimit": ("its time limit is longer than your account allows",
                                        "Lower time_limit."),
}  # fmt: skip

_NODES_DOWN = ("ReqNodeNotAvail", "Nodes_required")

#: This package's name for the state of a job that Slurm has requeued after its start.
QUEUED_AGAIN = "QUEUED_AGAIN"
_REQUEUE = "To resume such jobs automatically, set requeue."
#: Final states that are not failures of the code: sentence and remedy. With ``requeue``, a new Slurm job continues.
_INTERRUPTIONS = {
    "TIMEOUT": ("Slurm job {job} reached its time limit (TIMEOUT).",
                "Raise time_limit, or set requeue and save checkpoints."),
    QUEUED_AGAIN: ("Slurm requeued job {job} (scontrol requeue).", _REQUEUE),
    "PREEMPTED": ("Slurm gave the nodes of job {job} to a job with higher priority (PREEMPTED).", _REQUEUE),
    "NODE_FAIL": ("Slurm lost a node of job {job} (NODE_FAIL).", ""),
    "BOOT_FAIL": ("A node of Slurm job {job} did not boot (BOOT_FAIL).", ""),
}  # fmt: skip
_ENDS = _INTERRUPTIONS | {
    "CANCELLED": ("Slurm job {job} was canceled outside of this package (scancel).", ""),
    "OUT_OF_MEMORY": ("Slurm killed job {job} because it exceeded its memory (OUT_OF_MEMORY).",
                      "Request more memory with extra, for example --mem=64G."),
    "DEADLINE": ("Slurm job {job} reached its deadline (DEADLINE).", ""),
}  # fmt: skip


def waiting(state: JobState) -> str:
    """Return why a pending job waits: "waiting for free nodes (Resources)"."""
    if state.state == "CONFIGURING":
        return "its nodes are being started (CONFIGURING)"
    reason = state.reason.split(",")[0]
    default = "waiting for nodes that are down or reserved" if reason.startswith(_NODES_DOWN) else "waiting"
    text = _NEVER[reason][0] if reason in _NEVER else _REASONS.get(reason, default)
    return f"{text} ({state.reason})" if state.reason else text


def blocked_notice(state: JobState, job: str) -> RunNotice | None:
    """Return the notice for a job that cannot start without a change, None for a job that only waits in the queue."""
    reason = state.reason.split(",")[0]
    if reason in _NEVER:
        why, remedy = _NEVER[reason]
        text = f"Slurm job {job} cannot start, because {why} ({reason}). {remedy.format(job=job)}"
        return RunNotice("warning", text, reason)
    if reason.startswith(("QOSMax", "QOSMin", "AssocMaxCpuPer", "AssocMaxNodePer", "AssocMaxGRESPer")):
        text = f"Slurm job {job} exceeds what you may use at the same time ({reason}). Request fewer nodes or GPUs."
        return RunNotice("warning", text, reason)
    if reason.startswith(_NODES_DOWN):
        text = f"Slurm job {job} waits for nodes that are down, drained or reserved ({reason}). "
        return RunNotice("warning", text + "Wait, or request another partition or fewer nodes.", "nodes-down")
    return None


def end(state: JobState, job: str) -> str:
    """Return the cause in Slurm's final state with its remedy, "" if it only reflects the exit codes."""
    return " ".join(_ENDS.get(state.state, ())).format(job=job).strip()


def interruption(state: JobState, job: str) -> str:
    """Return the sentence about the interruption that ended a job, "" for any other end."""
    ending = "PREEMPTED" if state.preempted and not state.ended else state.state
    return _INTERRUPTIONS.get(ending, ("",))[0].format(job=job)


def usage(state: JobState, job: str) -> str:
    """Return the final state and the resource usage of a job as a sentence."""
    exit_text = f"exit code {state.exit_code}" if not state.exit_signal else f"signal {state.exit_signal}"
    memory = f", peak memory per node {size(state.memory)}" if state.memory else ""
    cause = f" {end(state, job)}" if state.state == "OUT_OF_MEMORY" else ""
    return f"Slurm job {job} ended as {state.state} after {duration(state.seconds)}, {exit_text}{memory}.{cause}"


#: Errors of sbatch: the message, the code, and the remedy, which lists the allowed ``values`` if known.
REFUSALS = (
    ("invalid partition", "slurm-partition-invalid", "Set the option partition to one of: {values}."),
    ("invalid account", "slurm-account-not-allowed", "Remove the option account, or set it to one of: {values}."),
    ("invalid qos", "slurm-qos-not-allowed", "Remove the option qos, or set it to one of: {values}."),
    ("time limit", "slurm-time-limit", "Lower time_limit."),
    ("node count", "slurm-node-count", "Lower node_count."),
    (
        "node configuration is not available",
        "slurm-nodes-insufficient",
        "Request fewer processes, cores or GPUs per node, or set another partition.",
    ),
    (
        "invalid generic resource",
        "slurm-gpus-invalid",
        "Remove gpus_per_node, or set it to a value that is listed by: sinfo -o %G",
    ),
    ("invalid feature", "slurm-constraint-invalid", "Set constraint to features that are listed by: sinfo -o %f"),
    ("more processors", "slurm-nodes-insufficient", "Request fewer processes or cores per node."),
    ("unrecognized option", "slurm-extra-invalid", "Remove it from the option extra."),
    ("invalid option", "slurm-extra-invalid", "Remove it from the option extra."),
    ("contact slurm controller", "slurm-silent", "Try again when Slurm's controller responds to: scontrol ping"),
)


def refusal(error: commands.SlurmFailed, options: SlurmOptions) -> tuple[str, str]:
    """Return the code and the remedy for an error of sbatch."""
    for message, code, remedy in REFUSALS:
        if message in error.message.lower():
            return code, remedy.format(values=", ".join(_values(code, options)) if "{" in remedy else "")
    return error.code, ""


def _values(code: str, options: SlurmOptions) -> list[str]:
    """Return the values of the rejected option that the user may use."""
    try:
        if code == "slurm-partition-invalid":
            return commands.partitions()
        accounts = commands.allowed(options.partition)
    except commands.SlurmFailed:
        return ["those that your administrators name"]
    if code == "slurm-account-not-allowed":
        return list(accounts)
    return list(
        dict.fromkeys(accounts.get(options.account.lower()) or [qos for row in accounts.values() for qos in row])
    )


# nodes ------------------------------------------------------------------------------------------

_DOWN = ("down", "drain", "fail", "error", "unk", "no_respond", "perfctrs", "maint", "powered_down", "power_down")
_STARTING = ("powering_up", "boot", "reboot", "configuring")
_IN_USE = {"mixed": "partly in use", "allocated": "in use"}


def node(fields: Sequence[str]) -> NodeInfo:
    """Return the description of a node from a row of ``commands.nodes``."""
    name, slurm_state, cores, load, gres, reason = fields
    base_state = slurm_state.lower().rstrip("*~#!%$@^-")
    is_silent = slurm_state.endswith("*")
    state: NodeState = "up"
    detail = _IN_USE.get(base_state, base_state)
    if is_silent or base_state.startswith(_DOWN):
        state = "down"
        detail = f"{base_state}: {reason}" if reason not in ("none", "") else base_state
        detail += " (no response to Slurm)" if is_silent else ""
    elif base_state.startswith(_STARTING):
        state = "starting"
    gpus, gpu_name = commands.gpus_in(gres)
    cpu_load = round(float(load), 1) if re.fullmatch(r"\d+(\.\d+)?", load) else None
    return NodeInfo(name, state, detail, gpus, gpu_name, commands.leading_number(cores), load=cpu_load)


# the queue --------------------------------------------------------------------------------------

#: The fields of squeue; the name is last because it may contain the separator.
_FORMAT = "%i|%u|%T|%r|%Q|%D|%C|%b|%P|%j"
#: Makes squeue print all pending tasks of an array as one entry.
_WHOLE = {"SLURM_BITSTR_LEN": "0"}
_MAX_HOLDING = 32
#: States of jobs that have nodes.
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def queue(partition: str = "") -> list[QueuedJob]:
    """Return the jobs of all users in the given partitions, or in all: running jobs, then waiting jobs, by priority.

    Slurm may list only the user's own jobs (PrivateData). Raises SlurmFailed.
    """
    filters = [f"--partition={partition}"] if partition else []
    output = commands.run("squeue", "--noheader", *filters, f"--format={_FORMAT}", more=_WHOLE)
    return queued_jobs(output.splitlines())


def queued_jobs(lines: Sequence[str]) -> list[QueuedJob]:
    """Return the jobs of lines in ``_FORMAT``: running before waiting ones, by Slurm's priority, then by number."""
    jobs = [_queued_job(line) for line in lines if line.count("|") >= 9]
    return sorted(jobs, key=lambda job: (not job.runs, -job.priority, commands.leading_number(job.id)))


def _queued_job(line: str) -> QueuedJob:
    fields = line.split("|", 9)
    number, user, state, reason, priority, nodes, cores, gres, partition, name = map(str.strip, fields)
    runs, count = state in _RUNNING, commands.leading_number(nodes)
    array, _, tasks = number.partition("_[")
    return QueuedJob(
        id=array,
        name=name,
        user="" if user == commands.user() else user,
        runs=runs,
        why="" if runs else waiting(JobState(state, "" if reason in ("None", "(null)") else reason)),
        priority=commands.leading_number(priority),
        nodes=count,
        cores=commands.leading_number(cores),
        gpus=commands.gpus_in(re.sub(r"gres[:/]", "", gres))[0] * count,
        partition=partition,
        # "0-9:3,12%2" means five tasks, at most two of them at the same time.
        tasks=len(commands.numbers(tasks.partition("%")[0])) or 1,
        first=commands.leading_number(tasks),
    )


def position(jobs: Sequence[QueuedJob], number: str) -> QueueView | None:
    """Return the position of a waiting job in the queue of its partition, None if it does not wait.

    The job may be a task of an array, such as 123_4.
    """
    array, _, task = number.partition("_")
    queued = next((job for job in jobs if job.id in (number, array) and not job.runs), None)
    if queued is None:
        return None
    earlier_tasks = min(max(0, int(task or 0) - queued.first), queued.tasks - 1)
    partitions = set(queued.partition.split(","))
    partition_jobs = [job for job in jobs if partitions & set(job.partition.split(","))]
    pending = [job for job in partition_jobs if not job.runs]
    return QueueView(
        position=1 + earlier_tasks + sum(job.tasks for job in pending[: pending.index(queued)]),
        of=sum(job.tasks for job in pending),
        priority=queued.priority,
        holding=tuple(_holding(job) for job in partition_jobs if job.runs)[:_MAX_HOLDING],
        host="Slurm",
        is_fixed=True,
    )


def _holding(job: QueuedJob) -> Holding:
    """Return the resources that a running job holds. The Slurm name of a job of this package contains name and id."""
    match = commands.OURS.search(job.name)
    name, id_ = (job.name[: match.start()], job.name[match.start() + 1 :]) if match else (job.name, job.id)
    return Holding(id_, name, job.user, cores=job.cores)

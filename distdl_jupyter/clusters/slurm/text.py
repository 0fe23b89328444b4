"""Slurm's reasons, states, nodes and queue as text for users, with remedies for problems.

The reasons are those of squeue(1), "JOB REASON CODES"; the states those of "JOB STATE CODES".
"""

from __future__ import annotations

import re

from distdl_jupyter.clusters.base import NodeInfo, NodeState, RunNotice
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.clusters.slurm.commands import JobState
from distdl_jupyter.core.humanize import duration, size
from distdl_jupyter.core.queue import QueuedJob

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
_BLOCKED = {
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
#: Prefixes of the reasons for limits on the resources that a user may have at the same time.
_LIMIT_PREFIXES = ("QOSMax", "QOSMin", "AssocMaxCpuPer", "AssocMaxNodePer", "AssocMaxGRESPer")

#: This package's name for the state of a job that Slurm has requeued after its start.
QUEUED_AGAIN = "QUEUED_AGAIN"
_REQUEUE_HINT = "To resume such jobs automatically, set requeue."
#: Final states that are not failures of the code: sentence and remedy. With ``requeue``, a new Slurm job continues.
_INTERRUPTIONS = {
    "TIMEOUT": ("Slurm job {job} reached its time limit (TIMEOUT).",
                "Raise time_limit, or set requeue and save checkpoints."),
    QUEUED_AGAIN: ("Slurm requeued job {job} (scontrol requeue).", _REQUEUE_HINT),
    "PREEMPTED": ("Slurm gave the nodes of job {job} to a job with higher priority (PREEMPTED).", _REQUEUE_HINT),
    "NODE_FAIL": ("Slurm lost a node of job {job} (NODE_FAIL).", ""),
    "BOOT_FAIL": ("A node of Slurm job {job} did not boot (BOOT_FAIL).", ""),
}  # fmt: skip
_FINAL_STATES = _INTERRUPTIONS | {
    "CANCELLED": ("Slurm job {job} was canceled outside of this package (scancel).", ""),
    "OUT_OF_MEMORY": ("Slurm killed job {job} because it exceeded its memory (OUT_OF_MEMORY).",
                      "Request more memory with extra, for example --mem=64G."),
    "DEADLINE": ("Slurm job {job} reached its deadline (DEADLINE).", ""),
}  # fmt: skip
_EXTRA_HINT = "Remove it from the option extra."
#: The remedy for an account or a QOS that sbatch rejects.
_LIST_HINT = "or set it to a value that is listed by: sacctmgr show assoc user=$USER format=account,qos"
#: Errors of sbatch: the message, the code and the remedy.
REFUSALS = (
    ("invalid partition", "slurm-partition-invalid", "Set partition to one that is listed by: sinfo -o %P"),
    ("invalid account", "slurm-account-not-allowed", f"Remove the option account, {_LIST_HINT}"),
    ("invalid qos", "slurm-qos-not-allowed", f"Remove the option qos, {_LIST_HINT}"),
    ("time limit", "slurm-time-limit", "Lower time_limit."),
    ("node count", "slurm-node-count", "Lower node_count."),
    (
        "node configuration is not available",
        "slurm-nodes-insufficient",
        "Request fewer cores or GPUs, or set partition.",
    ),
    ("invalid generic resource", "slurm-gpus-invalid", "Set gpus_per_node to a value that is listed by: sinfo -o %G"),
    ("invalid feature", "slurm-constraint-invalid", "Set constraint to features that are listed by: sinfo -o %f"),
    ("more processors", "slurm-nodes-insufficient", "Request fewer processes or cores per node."),
    ("unrecognized option", "slurm-extra-invalid", _EXTRA_HINT),
    ("invalid option", "slurm-extra-invalid", _EXTRA_HINT),
    ("contact slurm controller", "slurm-silent", "Try again when Slurm's controller responds to: scontrol ping"),
)


def waiting(state: JobState) -> str:
    """Return why a pending job waits: "waiting for free nodes (Resources)"."""
    if state.state == "CONFIGURING":
        return "its nodes are being started (CONFIGURING)"
    reason = state.reason.split(",")[0]
    default = "waiting for nodes that are down or reserved" if reason.startswith(_NODES_DOWN) else "waiting"
    text = _BLOCKED[reason][0] if reason in _BLOCKED else _REASONS.get(reason, default)
    return f"{text} ({state.reason})" if state.reason else text


def blocked_notice(state: JobState, job: str) -> RunNotice | None:
    """Return the notice for a job that cannot start without a change, None for a job that only waits in the queue."""
    reason = state.reason.split(",")[0]
    if reason in _BLOCKED:
        why, remedy = _BLOCKED[reason]
        text = f"Slurm job {job} cannot start, because {why} ({reason}). {remedy.format(job=job)}"
        return RunNotice("warning", text, reason)
    if reason.startswith(_LIMIT_PREFIXES):
        text = f"Slurm job {job} exceeds what you may use at the same time ({reason}). Request fewer nodes or GPUs."
        return RunNotice("warning", text, reason)
    if reason.startswith(_NODES_DOWN):
        text = f"Slurm job {job} waits for nodes that are down, drained or reserved ({reason}). "
        return RunNotice("warning", text + "Wait, or request another partition or fewer nodes.", "nodes-down")
    return None


def end(state: JobState, job: str) -> str:
    """Return the cause in Slurm's final state with its remedy, "" if it only reflects the exit codes."""
    return " ".join(_FINAL_STATES.get(state.state, ())).format(job=job).strip()


def interruption(state: JobState, job: str) -> str:
    """Return the sentence about the interruption that ended a job, "" for any other end."""
    state_name = "PREEMPTED" if state.preempted and not state.ended else state.state
    return _INTERRUPTIONS.get(state_name, ("",))[0].format(job=job)


def usage(state: JobState, job: str) -> str:
    """Return the final state and the resource usage of a job as a sentence."""
    exit_text = f"exit code {state.exit_code}" if not state.exit_signal else f"signal {state.exit_signal}"
    memory = f", peak memory per node {size(state.memory)}" if state.memory else ""
    cause = f" {end(state, job)}" if state.state == "OUT_OF_MEMORY" else ""
    return f"Slurm job {job} ended as {state.state} after {duration(state.seconds)}, {exit_text}{memory}.{cause}"


def refusal(error: commands.SlurmFailed) -> tuple[str, str]:
    """Return the code and the remedy for an error of sbatch."""
    matches = ((code, remedy) for message, code, remedy in REFUSALS if message in error.message.lower())
    return next(matches, (error.code, ""))


# nodes and the queue ----------------------------------------------------------------------------

_DOWN = ("down", "drain", "fail", "error", "unk", "no_respond", "perfctrs", "maint", "powered_down", "power_down")
_STARTING_STATES = ("powering_up", "boot", "reboot", "configuring")
_USE_DETAILS = {"mixed": "partly in use", "allocated": "in use"}
#: States of jobs that have nodes.
_RUNNING_STATES = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def nodes(partition: str) -> list[NodeInfo]:
    """Return the nodes of one partition, or of all. Raises SlurmFailed."""
    filters = [f"--partition={partition}"] if partition else []
    output = commands.run("sinfo", "--noheader", "--Node", *filters, "--format=%N|%T|%c|%O|%G|%E")
    rows = ([field.strip() for field in line.split("|", 5)] for line in output.splitlines() if line.count("|") >= 5)
    return list({row[0]: node(*row) for row in rows}.values())


def node(name: str, slurm_state: str, cores: str, load: str, gres: str, reason: str) -> NodeInfo:
    """Return the description of a node from sinfo's fields."""
    base_state, is_silent = slurm_state.lower().rstrip("*~#!%$@^-"), slurm_state.endswith("*")
    state: NodeState = "up"
    detail = _USE_DETAILS.get(base_state, base_state)
    if is_silent or base_state.startswith(_DOWN):
        state = "down"
        detail = f"{base_state}: {reason}" if reason not in ("none", "") else base_state
        detail += " (no response to Slurm)" if is_silent else ""
    elif base_state.startswith(_STARTING_STATES):
        state = "starting"
    gpus, gpu_name = commands.gpus_in(gres)
    cpu_load = round(float(load), 1) if re.fullmatch(r"\d+(\.\d+)?", load) else None
    return NodeInfo(name, state, detail, gpus, gpu_name, commands.leading_number(cores), load=cpu_load)


def queue() -> list[QueuedJob]:
    """Return this user's jobs in Slurm: running jobs, then waiting jobs, by Slurm's priority. Raises SlurmFailed."""
    # The name is last because it may contain the separator.
    output = commands.run("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%r|%Q|%D|%C|%b|%P|%j")
    jobs = [_queued_job(*line.split("|", 8)) for line in output.splitlines() if line.count("|") >= 8]
    return sorted(jobs, key=lambda job: (not job.runs, -job.priority, commands.leading_number(job.id)))


def _queued_job(
    id_: str, state: str, reason: str, priority: str, nodes: str, cores: str, gres: str, partition: str, name: str
) -> QueuedJob:
    is_running, count = state in _RUNNING_STATES, commands.leading_number(nodes)
    return QueuedJob(
        id=id_,
        name=name,
        runs=is_running,
        why="" if is_running else waiting(JobState(state, "" if reason in ("None", "(null)") else reason)),
        priority=commands.leading_number(priority),
        nodes=count,
        cores=commands.leading_number(cores),
        gpus=commands.gpus_in(re.sub(r"gres[:/]", "", gres))[0] * count,
        partition=partition,
    )

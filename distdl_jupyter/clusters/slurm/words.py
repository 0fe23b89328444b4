"""Slurm's reasons and states in words, with what can be done about them. Pure.

The reasons are those of squeue(1), "JOB REASON CODES"; the states those of "JOB STATE CODES".
"""

from __future__ import annotations

from distdl_jupyter.clusters.base import NodeInfo, NodeState, Notice
from distdl_jupyter.clusters.slurm.commands import JobState
from distdl_jupyter.clusters.slurm.sinfo import Node

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
#: Reasons with which a job waits forever unless something changes: what is wrong, and the remedy.
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

#: What a job is here that Slurm has put into its queue again after it had begun.
QUEUED_AGAIN = "QUEUED_AGAIN"
_ENDS = {
    QUEUED_AGAIN: "Slurm requeued the job (scontrol requeue). To resume such jobs automatically, set requeue.",
    "CANCELLED": "The Slurm job was canceled outside of this package (scancel).",
    "TIMEOUT": "The Slurm job reached its time limit (TIMEOUT). Raise time_limit, or set requeue and save checkpoints.",
    "NODE_FAIL": "Slurm lost one of the job's nodes (NODE_FAIL).",
    "OUT_OF_MEMORY": "Slurm killed the job because it exceeded its memory (OUT_OF_MEMORY). Request more memory with "
                     "extra, for example --mem=64G.",
    "PREEMPTED": "Slurm gave the nodes to a job with higher priority (PREEMPTED). To resume such jobs automatically, "
                 "set requeue.",
    "BOOT_FAIL": "A node of the job did not boot (BOOT_FAIL).",
    "DEADLINE": "The Slurm job reached its deadline (DEADLINE).",
    "REVOKED": "The job was started on another cluster of the federation.",
}  # fmt: skip
#: Ends that are no failure of what ran: with the option ``requeue`` the job begins again in another Slurm job.
_INTERRUPTIONS = {
    "TIMEOUT": "Slurm job {job} reached its time limit (TIMEOUT).",
    QUEUED_AGAIN: "Slurm requeued job {job} (scontrol requeue).",
    "PREEMPTED": "Slurm gave the nodes of job {job} to a job with higher priority (PREEMPTED).",
    "NODE_FAIL": "Slurm lost a node of job {job} (NODE_FAIL).",
    "BOOT_FAIL": "A node of Slurm job {job} did not boot (BOOT_FAIL).",
}


def waiting(state: JobState) -> str:
    """Return why a pending job waits: "waiting for free nodes (Resources)"."""
    if state.state == "CONFIGURING":
        return "its nodes are being started (CONFIGURING)"
    reason = state.reason.split(",")[0]
    if reason in _NEVER:
        text = _NEVER[reason][0]
    else:
        text = _REASONS.get(reason) or ("waiting" if not reason.startswith(("ReqNodeNotAvail", "Nodes_required"))
                                        else "waiting for nodes that are down or reserved")  # fmt: skip
    return f"{text} ({state.reason})" if state.reason else text


def never(state: JobState, job: str) -> Notice | None:
    """Return what to do about a job that will not begin by itself, None for one that only waits its turn."""
    reason = state.reason.split(",")[0]
    if reason in _NEVER:
        why, remedy = _NEVER[reason]
        return Notice(
            "warning", f"Slurm job {job} cannot start, because {why} ({reason}). {remedy.format(job=job)}", reason
        )
    if reason.startswith(("QOSMax", "QOSMin", "AssocMaxCpuPer", "AssocMaxNodePer", "AssocMaxGRESPer")):
        text = f"Slurm job {job} exceeds what you may use at the same time ({reason}). Request fewer nodes or GPUs."
        return Notice("warning", text, reason)
    if reason.startswith(("ReqNodeNotAvail", "Nodes_required")):
        return Notice("warning", f"Slurm job {job} waits for nodes that are down, drained or reserved ({reason}). "
                      "Wait, or request another partition or fewer nodes.", "nodes-down")  # fmt: skip
    return None


def end(state: JobState) -> str:
    """Return what Slurm's final state says of the cause, "" when it says nothing beyond the exit codes."""
    return _ENDS.get(state.state, "")


def interruption(state: JobState, job: str) -> str:
    """Return which interruption has ended a job that had not failed itself, "" for every other end."""
    ending = "PREEMPTED" if state.preempted and not state.ended else state.state
    return _INTERRUPTIONS.get(ending, "").format(job=job)


def unexplained(state: JobState) -> str:
    """Return what can be said of an end when nothing says why."""
    reason = f" ({state.reason})" if state.reason else ""
    return f"Slurm ended the job as {state.state}{reason}."


_DOWN = ("down", "drain", "fail", "error", "unk", "no_respond", "perfctrs", "maint", "powered_down", "power_down")
_STARTING = ("powering_up", "boot", "reboot", "configuring")


def node(found: Node) -> NodeInfo:
    """Return one of Slurm's nodes as lists show it."""
    word = found.state.lower().rstrip("*~#!%$@^-")
    silent = found.state.endswith("*")
    state: NodeState
    if silent or word.startswith(_DOWN):
        state, detail = "down", _why_down(word, found.reason, silent=silent)
    elif word.startswith(_STARTING):
        state, detail = "starting", word
    else:
        state, detail = "up", {"mixed": "partly in use", "allocated": "in use"}.get(word, word)
    return NodeInfo(found.name, state, detail, found.gpus, found.gpu_name, found.cores, load=found.load)


def _why_down(word: str, reason: str, *, silent: bool) -> str:
    why = f"{word}: {reason}" if reason else word
    return f"{why} (no response to Slurm)" if silent else why

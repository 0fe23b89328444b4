"""Everybody's jobs in Slurm's queue, as ``squeue`` prints them, and one's own place among them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distdl_jupyter.clusters.slurm import commands, sinfo, words
from distdl_jupyter.core.queue import Holding, QueuedJob, QueueView

#: What squeue is asked for, the name last: it may hold what stands between the fields.
_FORMAT = "%i|%u|%T|%r|%Q|%D|%C|%b|%P|%j"
#: The tasks of an array that wait as they are, however many.
_WHOLE = {"SLURM_BITSTR_LEN": "0"}
#: Tasks of an array: from, to, every how many.
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
#: Running jobs that a view names at most.
_MOST = 32
#: States of jobs that have nodes.
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def jobs(partition: str = "") -> list[QueuedJob]:
    """Return all users' jobs, of some partitions or of all: those that run, then those that wait, by priority.

    Slurm shows only one's own where its administrators want that (PrivateData). Raises SlurmFailed.
    """
    which = [f"--partition={partition}"] if partition else []
    said = commands.run("squeue", "--noheader", *which, f"--format={_FORMAT}", more=_WHOLE)
    return sorted((job(line) for line in said.splitlines() if line.count("|") >= 9), key=order)


def order(one: QueuedJob) -> tuple[bool, int, int]:
    """Sort running jobs before waiting ones, each by Slurm's priority, then by number."""
    return not one.runs, -one.priority, commands.leading_number(one.id)


def job(line: str) -> QueuedJob:
    """Return the job of a line in ``_FORMAT``."""
    fields = line.split("|", 9)
    number, user, state, reason, priority, nodes, cores, gres, partition, name = map(str.strip, fields)
    runs = state in _RUNNING
    count = commands.leading_number(nodes)
    waits = commands.JobState(state, "" if reason in ("None", "(null)") else reason)
    array, _, waiting = number.partition("_[")
    return QueuedJob(
        id=array,
        name=name,
        user="" if user == commands.user() else user,
        runs=runs,
        why="" if runs else words.waiting(waits),
        priority=commands.leading_number(priority),
        nodes=count,
        cores=commands.leading_number(cores),
        gpus=sinfo.gpus_in(re.sub(r"gres[:/]", "", gres))[0] * count,
        partition=partition,
        tasks=_tasks(waiting.rstrip("]")) if waiting else 1,
        first=commands.leading_number(waiting),
    )


def _tasks(text: str) -> int:
    """Return how many tasks of an array wait: "0-9:3,12%2" are five, of which two may run at once."""
    parts = _RANGE.findall(text.partition("%")[0])
    return sum(len(range(int(first), int(last or first) + 1, int(step or 1))) for first, last, step in parts)


def _holding(one: QueuedJob) -> Holding:
    """Return what a running job holds; one that this package has submitted is called by its own name and id."""
    ours = sinfo.OURS.search(one.name)
    name, id_ = (one.name[: ours.start()], one.name[ours.start() + 1 :]) if ours else (one.name, one.id)
    return Holding(id_, name, one.user, cores=one.cores)


def view(found: Sequence[QueuedJob], number: str) -> QueueView | None:
    """Return a waiting job's place among those that wait for its partition, None where it does not wait (any more).

    The job may be a task of an array, as 123_4.
    """
    array, _, task = number.partition("_")
    own = next((one for one in found if one.id in (number, array) and not one.runs), None)
    if own is None:
        return None
    before = min(max(0, int(task or 0) - own.first), own.tasks - 1)
    partitions = set(own.partition.split(","))
    near = [one for one in found if partitions & set(one.partition.split(","))]
    waiting = [one for one in near if not one.runs]
    return QueueView(
        place=1 + before + sum(one.tasks for one in waiting[: waiting.index(own)]),
        of=sum(one.tasks for one in waiting),
        priority=own.priority,
        holding=tuple(_holding(one) for one in near if one.runs)[:_MOST],
        host="Slurm",
        is_fixed=True,
    )

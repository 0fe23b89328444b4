"""``queue()``: the jobs that use this machine, and the queued jobs in their order."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import base, cluster_configs
from distdl_jupyter.core import humanize, machine, registry
from distdl_jupyter.core.errors import ClusterRefused, DistDLError
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.options import MAX_PRIORITY, OPTIONS
from distdl_jupyter.core.plan import ORDER, Holding, QueuedJob, format_amount, format_reason, make_not_queued_error
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import job_list
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.node import slots
from distdl_jupyter.supervisor import control

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.node.slots import QueueEntry

_WAITING_HEADER = ("Position", "Job", "Name", "Waiting for", "Priority")
_HOLDING_HEADER = ("Resources", "Job", "Name")
_JOB_HEADER = ("Job", "Name", "Requested", "Partition", "Status")
#: Maximum number of printed rows of a cluster's queue; the other rows are only counted.
_MAX_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A queued job. ``position`` in the queue is None if it is unknown. ``user`` is "" for jobs of this user.

    ``target`` is the cluster where it is queued.
    """

    position: int | None
    id: str
    name: str
    user: str
    why: str
    priority: int
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterQueue:
    """This user's jobs in the queue of a cluster, running jobs first; ``problem`` is why the queue is unknown."""

    name: str
    jobs: tuple[QueuedJob, ...] = ()
    problem: str = ""

    def make_rows(self) -> list[tuple[str, ...]]:
        """Return a row for each job."""
        rows: list[tuple[str, ...]] = []
        for job in self.jobs:
            gpus = [plural(job.gpus, "GPU")] if job.gpus else []
            requested = ", ".join([plural(job.nodes, "node"), *gpus, plural(job.cores, "core")])
            rows.append((job.id, job.name, requested, job.partition, "running" if job.runs else job.why))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """The used, total and free resources of this machine, and the number of its queued jobs, for all users.

    ``total`` and ``free`` are GPUs, cores and bytes of memory. A job uses the cores and memory that it has requested.
    """

    holding: tuple[Holding, ...]
    total: dict[str, float]
    free: dict[str, float]
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Queue(humanize.Display):
    """The running jobs ``holding`` resources of this machine, and all queued jobs, those of this machine first.

    ``total`` and ``free`` are this machine's GPUs, cores and bytes of memory; a running job uses
    the cores and memory that it has requested. ``clusters`` are the queues that this user's clusters manage themselves.
    """

    waiting: tuple[WaitingJob, ...]
    holding: tuple[Holding, ...]
    total: dict[str, float]
    free: dict[str, float]
    clusters: tuple[ClusterQueue, ...] = field(default=())

    def _parts(self) -> Iterator[str | humanize.Rows]:
        if running := [(_format_resources(job), short_id(job.job), _name_job(job)) for job in self.holding]:
            yield from (humanize.WholeRows([_HOLDING_HEADER, *running]), "")
        waiting_rows = self._format_waiting()
        yield humanize.WholeRows([_WAITING_HEADER, *waiting_rows]) if waiting_rows else "No jobs are queued."
        for cluster in self.clusters:
            rows = cluster.make_rows()
            yield from ("", f"{cluster.name}, your jobs:")
            yield (
                humanize.WholeRows([_JOB_HEADER, *rows[:_MAX_ROWS]])
                if rows
                else cluster.problem or "The queue is empty."
            )
            if len(rows) > _MAX_ROWS:
                yield f"and {len(rows) - _MAX_ROWS} more jobs"

    def _format_waiting(self) -> list[tuple[str, ...]]:
        return [
            (
                str(job.position or ""),
                short_id(job.id),
                _name_job(job),
                job.why,
                str(job.priority),
            )
            for job in self.waiting
        ]


def _name_job(job: Holding | WaitingJob) -> str:
    return f"{job.name} of {job.user}" if job.user else job.name


def _format_resources(job: Holding) -> str:
    parts = [f"GPU {', '.join(job.gpus)}"] if job.gpus else []
    parts += [format_amount(name, value) for name, value in (("cores", job.cores), ("memory", job.memory)) if value]
    return ", ".join(parts)


def queue() -> Queue:
    """Return the queue of this machine with the jobs of all users, and this user's jobs in other queues."""
    entries = slots.read_entries()
    use = get_machine_use(entries)
    return Queue(
        waiting=tuple(_list_waiting(entries)),
        holding=use.holding,
        total=use.total,
        free=use.free,
        clusters=tuple(_list_cluster_queues()),
    )


def get_machine_use(entries: list[QueueEntry] | None = None) -> MachineUse:
    """Return the resources of this machine that queue entries hold; read the entries if none are passed."""
    entries = slots.read_entries() if entries is None else entries
    labels = {gpu.uuid: str(gpu.number) for gpu in machine.list_gpus()}
    active_entries = [entry for entry in entries if entry.has_resources]
    total = base.get_totals(len(labels))
    used_gpus = {gpu for entry in active_entries for gpu in entry.gpus}
    free = {
        name: max(0.0, limit - sum(entry.request.amounts.get(name, 0) for entry in active_entries))
        for name, limit in total.items()
    }
    free["gpus"] = float(sum(gpu not in used_gpus for gpu in labels))
    holding = tuple(base.make_holding(entry, labels) for entry in active_entries)
    return MachineUse(holding=holding, total=total, free=free, waiting=len(entries) - len(active_entries))


def _list_cluster_queues() -> Iterator[ClusterQueue]:
    """Yield the queue of each cluster that manages one and that this user has added or has queued jobs on."""
    target_names = [row.row.compute_target for row in job_list.get_index().read_all() if not State(row.row.state).ended]
    kinds: list[str] = []
    with contextlib.suppress(DistDLError):  # an invalid cluster file is reported where clusters are used
        kinds += [target.kind for target in cluster_configs.list_named()]
        kinds += [cluster_configs.find(name).kind for name in target_names if name in cluster_configs.list_names()]
    for kind in dict.fromkeys(kinds):
        cluster = registry.get("clusters", kind)
        name = cluster.title or kind
        try:
            jobs = cluster.list_queue(registry.check_options("clusters", kind, {}))
        except DistDLError as error:
            yield ClusterQueue(name=name, problem=error.message)
            continue
        if jobs is not None:
            yield ClusterQueue(name=name, jobs=tuple(jobs))


def _list_waiting(slot_entries: list[QueueEntry]) -> Iterator[WaitingJob]:
    """Yield the queued jobs of this machine, in order, then this user's jobs in other queues."""
    entries = {entry.key: entry for entry in slot_entries}
    rows = {
        listed.row.id: listed.row
        for listed in reversed(job_list.get_index().read_all())
        if listed.row.state == State.QUEUED.value
    }
    for position in slots.schedule(slot_entries, slots.measure_limits()):
        entry = entries[position.key]
        row = rows.pop(entry.job, None) if entry.is_own else None
        holders = base.name_holders(position, entries)
        cause = format_reason(base.get_needs(entry.request), position.missing or (ORDER,), holders)
        yield WaitingJob(
            position=position.position,
            id=entry.job,
            name=entry.name,
            user="" if entry.is_own else entry.user,
            why=row.message if row is not None and entry.blocked else cause,
            priority=int(entry.priority),
            target="local",
        )
    for row in rows.values():
        yield WaitingJob(
            position=(row.queue.position or None) if row.queue else None,
            id=row.id,
            name=row.name,
            user="",
            why=row.message,
            priority=row.queue.priority if row.queue else 0,
            target=row.compute_target,
        )


def prioritize(id_: str, priority: int | None = None) -> int:
    """Change the priority of a queued job, by default to the highest of all queued jobs; return the priority.

    Raises JobNotFound, JobNotRunning if the job is no longer queued, InvalidSpec for an invalid priority,
    ClusterRefused if its queue does not use these priorities, DiskRefused.
    """
    value = None if priority is None else OPTIONS["priority"].check(priority, "priority")
    folder = JobStore().find(id_)
    view = JobReader(folder).catch_up()
    if view.state is not State.QUEUED:
        raise make_not_queued_error(folder.id, view.state)
    if view.queue is not None and view.queue.is_fixed:
        text = f"Job {folder.id} is queued on {view.queue.host}, so its order cannot be changed here."
        raise ClusterRefused(
            text, code="queue-order-fixed", hint="Move it to another cluster: distdl queue --move CLUSTER ID"
        )
    if value is None:
        priorities = [
            listed.row.queue.priority
            for listed in job_list.get_index().read_all()
            if listed.row.queue is not None and listed.row.id != folder.id
        ]
        current = view.queue.priority if view.queue is not None else 0
        value = min(MAX_PRIORITY, max([current, *(other + 1 for other in priorities)]))
    control.request(folder.control, "priority", priority=value)
    return int(value)

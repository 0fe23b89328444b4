"""A queued job: its position, the resources it waits for, and the jobs that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.state import State

#: Value of ``QueueView.lacks``: the resources are free, but reserved for jobs that are ahead.
ORDER = "order"
#: Value of ``QueueView.lacks``: the job waits for the end of another one.
AFTER = "after"
#: The beginning of the end reason of a job that was moved to another cluster; its name and a period follow.
MOVED_PREFIX = "The job was moved to "


@dataclass(frozen=True, slots=True)
class Holding:
    """The resources that a running job holds on a machine. ``user`` is "" for the user's own jobs."""

    job: str
    name: str
    user: str = ""
    gpus: tuple[str, ...] = ()
    cores: float = 0
    memory: float = 0

    @property
    def label(self) -> str:
        """The job's name, with its user if the job belongs to another user."""
        return f"{self.name} of {self.user}" if self.user else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of this user in a cluster's queue, with its ``id`` in the cluster; ``why`` is the reason why it is queued.

    ``nodes``, ``cores`` and ``gpus`` are those of the whole job.
    """

    id: str
    name: str
    runs: bool = False
    why: str = ""
    priority: int = 0
    nodes: int = 0
    cores: int = 0
    gpus: int = 0
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The position of a queued job: ``position``, from 1, among ``of`` queued jobs; 0 if it is unknown.

    ``needs``, ``free`` and ``total`` map the requested resources (gpus, cores, memory in bytes) to amounts. ``lacks``
    lists the resources that are not free, or ``ORDER`` or ``AFTER``. ``names`` are the jobs that hold these resources,
    are ahead, or must complete first. ``why`` is the reason as text. ``holding`` are the jobs that run on the machine
    ``host`` ("" for this one). ``number`` is the job's number by time. ``is_fixed``: the order cannot be changed here.
    """

    position: int = 1
    of: int = 1
    why: str = ""
    priority: int = 0
    needs: dict[str, float] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    holding: tuple[Holding, ...] = ()
    host: str = ""
    number: int | None = None
    is_fixed: bool = False


def format_amount(name: str, value: float) -> str:
    """Return an amount as text: "2 GPUs", "4 cores", "24 GB of memory"."""
    if name == "memory":
        return f"{size(value)} of memory"
    return plural(value, "GPU" if name == "gpus" else "core")


def format_reason(needs: Mapping[str, float], lacks: Iterable[str], names: Iterable[str]) -> str:
    """Return why a job waits: "waiting for 2 GPUs, held by digits"."""
    lacks, jobs = tuple(lacks), list(names)
    if lacks == (ORDER,):
        return f"waiting for its turn, after {listing(jobs)}" if jobs else "waiting for its turn"
    if lacks == (AFTER,):
        return f"waiting for {listing(jobs)} to complete"
    resources = listing([format_amount(name, needs[name]) for name in lacks if name in needs] or ["a slot"])
    return f"waiting for {resources}" + (f", held by {listing(jobs)}" if jobs else "")


def make_not_queued_error(id_: str, state: State) -> JobNotRunning:
    """Return the error for an operation that needs a queued job."""
    return JobNotRunning(f"Job {id_} is no longer queued: it is {state.value}.", code="job-not-queued")

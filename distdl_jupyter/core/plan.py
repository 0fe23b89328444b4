"""The interface between backends and clusters: where ranks run (placement) and how to run them (plan).

A cluster creates a placement, a backend turns it into a plan, and the cluster starts the plan.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import listing, plural, size

#: An address of a node, and ports that are free on it.
RankPorts = tuple[str, tuple[int | str, ...]]


@dataclass(frozen=True, slots=True)
class RankSlot:
    """Where one rank runs. ``host`` is the node's logical name; ``gpu`` is the rank's device, ``gpus`` are several.

    The network ``interface`` ("") and the rank's share of ``cores`` (0) are by default those of the placement.
    ``ports`` are free ports on ``address``, if the backend requested any.
    """

    rank: int
    node: int
    host: str
    local_rank: int
    gpu: int | None = None
    gpus: tuple[int, ...] = ()
    interface: str = ""
    cores: int = 0
    address: str = ""
    ports: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Placement:
    """The resources that a cluster assigns to a job: a slot for each rank, ports on ``address``, the network interface.

    ``address`` belongs to node 0. Addresses may be placeholders, which the cluster replaces once nodes are selected.
    """

    ranks: tuple[RankSlot, ...]
    address: str
    ports: tuple[int | str, ...]
    interface: str
    cores_per_rank: int | str = 1
    #: The network that the nodes share, such as "10.0.0.0/24", by which programs select an interface; "" if unknown.
    network: str = ""
    #: True when several logical nodes share one machine.
    emulated: bool = False
    #: The start of a command line, such as ssh, to which a host and a command are appended; () if there is none.
    remote_shell: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """The number of logical nodes."""
        return len(self.local_sizes)

    @cached_property
    def local_sizes(self) -> Counter[int]:
        """The number of ranks by node; cached, because every rank receives the number of its node."""
        return Counter(slot.node for slot in self.ranks)


def assign_ports(placement: Placement, ports: int, rank_ports: Callable[[RankSlot, int], RankPorts]) -> Placement:
    """Return the placement with ``ports`` ports from ``rank_ports`` for every rank."""
    if not ports:
        return placement
    assigned = ((slot, *rank_ports(slot, ports)) for slot in placement.ranks)
    slots = tuple(dataclasses.replace(slot, address=address, ports=numbers) for slot, address, numbers in assigned)
    return dataclasses.replace(placement, ranks=slots)


@dataclass(frozen=True, slots=True)
class Service:
    """A process of the job's Python on node 0, which prints its ready line before ranks start and ends with the job."""

    name: str
    arguments: tuple[str, ...]
    ready: str


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A program on node 0, next to the job's Python or on the PATH, that starts all ranks: ``argv`` and their command.

    ``first_exit`` returns, from the launcher's output, the rank that ended first with its exit code and signal number,
    or None. ``environment`` contains settings of the launcher itself, which ranks may inherit.
    """

    argv: tuple[str, ...]
    first_exit: Callable[[str], tuple[int, int | None, int | None] | None]
    environment: Mapping[str, str] = field(default_factory=dict)


Distribution = Literal["mpi", "torch", "tensorflow"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a job: ``environments`` contains one dict per rank. Without a launcher, ranks are started directly."""

    environments: tuple[dict[str, str], ...]
    services: tuple[Service, ...] = ()
    launcher: LaunchCommand | None = None
    #: The launch method, for platforms that start the ranks themselves and do not accept a launcher.
    distribution: Distribution = "torch"
    #: Lines for the log before the start, for example versions.
    notes: tuple[str, ...] = ()


def option(default: Any, help_: str, **metadata: Any) -> Any:
    """Declare an option of a plug-in; ``choices`` are its values, and a form shows it early with ``first``."""
    return field(default=default, metadata={"help": help_, **metadata})


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a plug-in without settings."""


#: Values of ``QueueView.lacks``: the free resources are reserved for jobs ahead; the job waits for the end of another.
ORDER, AFTER = "order", "after"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of this user in a cluster's queue: its ``id`` there, why it is queued, and what all its nodes have."""

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

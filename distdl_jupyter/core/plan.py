"""The words in which a backend and a cluster speak of a job: where ranks run, and how to run them.

Values only. A cluster makes a placement, a backend turns it into a plan, the cluster starts that plan; neither knows
the other.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

#: An address of a node, and ports that are free on it.
RankPorts = tuple[str, tuple[int | str, ...]]


@dataclass(frozen=True, slots=True)
class RankSlot:
    """Where one rank runs. ``host`` is the node's logical name; ``gpu`` the device it owns (None: none).

    ``interface`` and ``cores`` are set where nodes differ: the network interface of this node ("": the placement's)
    and this rank's share of its cores (0: the placement's). ``ports`` are this rank's own, free on ``address`` of its
    node, where the backend asked for some.
    """

    rank: int
    node: int
    host: str
    local_rank: int
    gpu: int | None = None
    #: All devices that it owns, where it was promised several.
    gpus: tuple[int, ...] = ()
    interface: str = ""
    cores: int = 0
    address: str = ""
    ports: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Placement:
    """What a cluster offers a job: one place per rank, ports reserved on ``address``, the network interface.

    ``address`` is one of node 0: services run there and rank 0 listens there. Where a platform chooses the nodes
    later, they and ``network`` are words that the cluster replaces on the node.
    """

    ranks: tuple[RankSlot, ...]
    address: str
    ports: tuple[int | str, ...]
    interface: str
    cores_per_rank: int | str = 1
    #: The network that the nodes share, as "10.0.0.0/24", for programs that choose an interface by it; "" for unknown.
    network: str = ""
    #: True when several logical nodes share one machine.
    emulated: bool = False
    #: Words that run a command on a node when its host and the command follow, as "ssh" does; () where there are none.
    remote_shell: tuple[str, ...] = ()

    def interface_of(self, slot: RankSlot) -> str:
        """Return the network interface on which a rank meets the others."""
        return slot.interface or self.interface

    def cores_of(self, slot: RankSlot) -> int | str:
        """Return how many cores a rank has for itself."""
        return slot.cores or self.cores_per_rank

    @property
    def node_count(self) -> int:
        """How many logical nodes there are."""
        return len(self._local_sizes)

    def local_size(self, node: int) -> int:
        """How many ranks run on one node."""
        return self._local_sizes[node]

    @cached_property
    def _local_sizes(self) -> Counter[int]:
        """How many ranks run on each node; every rank is told of it."""
        return Counter(slot.node for slot in self.ranks)


def with_ports(placement: Placement, ports: int, rank_ports: Callable[[RankSlot, int], RankPorts]) -> Placement:
    """Return the placement with ``ports`` ports of its own for every rank, as ``rank_ports`` says; unchanged for 0."""
    if not ports:
        return placement
    slots = []
    for slot in placement.ranks:
        address, numbers = rank_ports(slot, ports)
        slots.append(dataclasses.replace(slot, address=address, ports=numbers))
    return dataclasses.replace(placement, ranks=tuple(slots))


@dataclass(frozen=True, slots=True)
class Service:
    """A helper process on node 0 that must print its ready line before the ranks start; it ends with the job.

    ``arguments`` are those of the job's Python there, as ``-m module ...``.
    """

    name: str
    arguments: tuple[str, ...]
    ready: str


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program on node 0 that starts all ranks: the worker's command is put behind ``argv``.

    ``argv`` begins with the program's bare name; it is looked for beside the job's Python, then on the PATH there.

    ``first_exit`` reads from what the launcher printed which rank ended first: (rank, exit code, signal number), None
    when it does not say. ``environment`` holds settings of the launcher itself; ranks may inherit them.
    """

    argv: tuple[str, ...]
    first_exit: Callable[[str], tuple[int, int | None, int | None] | None]
    environment: Mapping[str, str] = field(default_factory=dict)


Distribution = Literal["mpi", "torch", "tensorflow"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a job: ``environments`` has one dict per rank. Without a launcher each rank is started directly."""

    environments: tuple[dict[str, str], ...]
    services: tuple[Service, ...] = ()
    launcher: Launcher | None = None
    #: How a platform that starts ranks itself, and lets nobody bring a launcher, is asked to start them.
    distribution: Distribution = "torch"
    #: What to write into the log before the start, e.g. versions.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A plug-in without settings."""

"""The words in which a backend and a cluster speak of a job: where ranks run, and how to run them.

Values only. A cluster makes a placement, a backend turns it into a plan, the cluster starts that plan; neither knows
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank runs. ``host`` is the node's logical name; ``gpu`` the device it owns (None: none)."""

    rank: int
    node: int
    host: str
    local_rank: int
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What a cluster offers a job: one place per rank, ports reserved on ``address``, the network interface."""

    ranks: tuple[RankPlace, ...]
    address: str
    ports: tuple[int, ...]
    interface: str
    cores_per_rank: int = 1
    #: True when several logical nodes share one machine.
    emulated: bool = False
    #: Words that run a command on a node when its host and the command follow, as "ssh" does; () where there are none.
    remote_shell: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """How many logical nodes there are."""
        return len({place.node for place in self.ranks})

    def local_size(self, node: int) -> int:
        """How many ranks run on one node."""
        return sum(place.node == node for place in self.ranks)


@dataclass(frozen=True, slots=True)
class Service:
    """A helper process that must print its ready line before the ranks start; it ends with the job."""

    name: str
    argv: tuple[str, ...]
    ready: str


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts all ranks: the worker's command is put behind ``argv``.

    ``first_exit`` reads from what the launcher printed which rank ended first: (rank, exit code, signal number), None
    when it does not say. ``environment`` holds settings of the launcher itself; ranks may inherit them.
    """

    argv: tuple[str, ...]
    first_exit: Callable[[str], tuple[int, int | None, int | None] | None]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a job: ``environments`` has one dict per rank. Without a launcher each rank is started directly."""

    environments: tuple[dict[str, str], ...]
    services: tuple[Service, ...] = ()
    launcher: Launcher | None = None
    #: What to write into the log before the start, e.g. versions.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A plug-in without settings."""

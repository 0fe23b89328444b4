"""The contract of a cluster.

A cluster is asked to ``place`` a job, to ``start`` a plan, and gives back a ``Run``: streams to read, exits to hear of,
signals to send. ``handle()`` of a run is plain data from which ``sweep`` can find and end what is left of the job after
its supervisor died. Nothing here knows events, views or backends' names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from distdl_jupyter.core.errors import ClusterRefused
from distdl_jupyter.core.plan import NoOptions, Placement, Plan

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder


@dataclass(frozen=True, slots=True)
class Stream:
    """A file descriptor to read: ``rank`` None is the launcher's or a service's own output."""

    fd: int
    rank: int | None
    name: str  # "out" or "err"


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one rank's process: an exit code or a signal's name such as ``"KILL"``."""

    rank: int
    code: int | None
    signal: str | None
    #: What is known of the cause beyond code and signal, one sentence.
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """One rank's process was started."""

    rank: int
    pid: int


@dataclass(slots=True)
class Context:
    """What a run needs besides the plan: the job's folder and the environment that every rank gets."""

    folder: JobFolder
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One machine of a cluster as it is now; ``detail`` says what else is known."""

    name: str
    state: Literal["up", "down", "starting", "unknown"] = "up"
    detail: str = ""
    gpus: int = 0
    gpu_name: str = ""


class Run(ABC):
    """A started job."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Stream, ...]:
        """The descriptors to read, until each ends."""

    @abstractmethod
    def started(self) -> list[Start]:
        """Return the processes that were started directly (a launcher's ranks report themselves)."""

    @abstractmethod
    def poll(self) -> list[Exit]:
        """Return the exits since the last call. Every rank exits exactly once, also when its launcher dies."""

    @abstractmethod
    def alive(self) -> list[int]:
        """Return the pids of all processes of the job that live, descendants included; [] when all are gone."""

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send INT to the ranks, or TERM or KILL to every process of the job."""

    def overheard(self, text: str) -> None:
        """Hear what the launcher or a service printed (streams with rank None)."""
        return

    @abstractmethod
    def handle(self) -> dict[str, Any]:
        """Return plain data for ``Cluster.sweep``."""

    @abstractmethod
    def close(self) -> None:
        """Free what the run holds (descriptors, ports, services). Called once, after everything ended."""


class Cluster(ABC):
    """One kind of place where ranks run."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: The kind in words, as lists show it.
    title: ClassVar[str] = ""
    #: Whether it is a place already without options; others are shown when a user has named one.
    complete: ClassVar[bool] = True
    #: Whether ``scale`` can change how many nodes there are.
    can_scale: ClassVar[bool] = False

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return one sentence with the remedy when this cluster cannot be used here, else ""."""

    @abstractmethod
    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return what "auto" means: the GPUs of one node, else 1."""

    def detail(self, options: Any) -> str:
        """Return what kind of machines these are in a few words: "2 cores, no GPU"; "" when it is not known."""
        return ""

    def nodes(self, options: Any) -> list[NodeInfo]:
        """Return the machines that can be named now; it may take seconds. A machine that is silent is told as such."""
        return []

    def holds(self, node: NodeInfo, host: str) -> bool:
        """Say whether a rank that was placed on ``host`` runs on this machine."""
        return node.name == host

    def max_node_count(self, options: Any, nodes: int) -> int:
        """Return how many nodes there can be at most, when ``nodes`` are there."""
        return nodes

    def scale(self, options: Any, node_count: int) -> Any:
        """Ask for so many nodes and return the options from now on. Raises ClusterRefused, InvalidSpec."""
        raise ClusterRefused(f"A cluster of the kind {self.title or self.name} has a fixed number of nodes.")

    @abstractmethod
    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Return where the ranks would run, without ports and without reserving anything. Raises InvalidSpec."""

    @abstractmethod
    def place(self, spec: JobSpec, ports: int, options: Any) -> Placement:
        """Return the preview with ``ports`` free ports that stay reserved. Raises LaunchFailed, InvalidSpec."""

    @abstractmethod
    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start the plan. Raises LaunchFailed when it cannot; nothing is left running then."""

    @abstractmethod
    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[int]:
        """Kill what is left of a job without a supervisor; return the pids that were found."""

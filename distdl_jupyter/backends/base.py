"""The contract of a backend.

A backend is asked three things: ``unavailable()`` says why it cannot run in this environment, ``plan()`` says what
environment each rank gets, which services must run first and whether a launcher such as ``mpirun`` starts the ranks,
and ``Options`` declares its settings once. It starts nothing and opens nothing. What else there is to know of it, it
says itself: its ``packages``, its ``order`` among the others, and how code that uses it looks (``usage``, ``checks``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.backends.usage import Package, Usage, listed
from distdl_jupyter.core.plan import NoOptions, Placement, Plan, RankSlot
from distdl_jupyter.core.spec import JobSpec

if TYPE_CHECKING:
    from distdl_jupyter.core.findings import Check
    from distdl_jupyter.core.source import Code


class Backend(ABC):
    """One way in which ranks meet."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: Labels a user can choose, with the options each one sets: {"horovod-mpi": {"controller": "mpi"}}.
    labels: ClassVar[dict[str, dict[str, Any]]] = {}
    #: Other names for labels: {"mpi": "horovod-mpi"}.
    aliases: ClassVar[dict[str, str]] = {}
    #: Programs that start processes as a job does, with the label that stands for each.
    replaces: ClassVar[dict[str, str]] = {}
    #: Ports that a plan uses on node 0.
    ports: ClassVar[int] = 0
    #: Ports that it uses for each rank, on the rank's own node.
    rank_ports: ClassVar[int] = 0
    #: Whether ranks meet before they train.
    meets: ClassVar[bool] = True
    #: Its place among the backends that are offered, the first is the smallest.
    order: ClassVar[int] = 100
    #: How code that trains with it looks.
    usage: ClassVar[Usage] = Usage()

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return one sentence with the remedy when this backend cannot run here, else ""."""

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return the Python modules that every node needs."""
        return ()

    def detail(self, options: Any) -> str:
        """Return what is installed of its packages, in words; "" for nothing."""
        return listed(self.packages(options))

    def programs(self, options: Any) -> tuple[str, ...]:
        """Return the programs that every node needs beside its Python or on its PATH."""
        return ()

    def packages(self, options: Any) -> tuple[Package, ...]:
        """Return the packages whose versions say what its jobs run with."""
        return ()

    def checks(self, code: Code, spec: JobSpec) -> Iterator[Check | None]:
        """Yield what is checked before a start beyond ``usage``; None for a check that does not concern this code."""
        from distdl_jupyter.backends import checks

        yield checks.kernel_memory()
        yield checks.cuda(code, spec)
        yield checks.nccl(code, spec)

    def job_environment(self, spec: JobSpec, restart_count: int) -> dict[str, str]:
        """Return what every process of the job has, whatever its rank; the ranks were started so often before."""
        return {}

    @abstractmethod
    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return how to run ``spec`` on ``placement``. Raises InvalidSpec when the two do not fit."""


def common_environment(placement: Placement, slot: RankSlot) -> dict[str, str]:
    """Return what every rank gets whatever the backend: torchrun's variables, its GPU and its share of threads.

    ``OMP_NUM_THREADS`` is the machine's cores divided by the ranks on it, because every rank would otherwise start as
    many compute threads as there are cores.
    """
    local_size = placement.local_size(slot.node)
    environment = {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(len(placement.ranks)),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(slot.node),
        "NODE_RANK": str(slot.node),
        "OMP_NUM_THREADS": str(placement.cores_of(slot)),
    }
    if slot.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = _visible_gpus(placement, slot)
    return environment


def _visible_gpus(placement: Placement, slot: RankSlot) -> str:
    """Return the GPUs of the rank's node in order of local rank, so that ``set_device(local_rank)`` finds its own.

    Where ranks share GPUs, or have several each, each sees only those that it was given.
    """
    if len(slot.gpus) > 1:
        return ",".join(map(str, slot.gpus))
    gpus = [str(other.gpu) for other in placement.ranks if other.node == slot.node]
    return ",".join(gpus) if len(set(gpus)) == len(gpus) else str(slot.gpu)

"""The interface of backends, which let the ranks of a job communicate.

A backend returns a plan: the environment of each rank, the services that start before the ranks, and the launcher (such
as ``mpirun``) if one starts the ranks. The backend itself starts no process. It also describes the code and packages of
its jobs, for the checks before the start.
"""

from __future__ import annotations

import ast
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from distdl_jupyter.core.errors import Check, Finding
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.machine import find_version, list_gpu_numbers
from distdl_jupyter.core.plan import NoOptions, Placement, Plan, RankSlot
from distdl_jupyter.core.source import Call, CodeAnalysis
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.worker.hooks import frameworks

#: Libraries whose trainers initialize communication, average gradients and divide data.
TRAINERS = ("lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "composer", "fastai")
#: Number of bytes of GPU memory below which a kernel is assumed to hold only its CUDA context.
_CUDA_CONTEXT_BYTES = 50_000_000
#: Names in code that detects GPUs itself.
_DETECTION_NAMES = ("is_available", "device_count", "is_initialized", "accelerator")
#: Functions of torch.cuda that work without a GPU.
_CPU_FUNCTIONS = ("manual_seed", "manual_seed_all", "empty_cache", "reset_peak_memory_stats")
#: The name of a CUDA device.
_DEVICE = re.compile(r"cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class CodePattern:
    """The code patterns of training with a backend. Code is Python; remedies are sentences."""

    #: The name of the communication library, for display.
    title: str = ""
    #: Unqualified names of the functions that initialize communication, or () if the backend does that itself.
    initializers: tuple[str, ...] = ()
    #: The packages of these functions, if their unqualified names are ambiguous.
    package: str | tuple[str, ...] = ""
    #: A call that initializes communication, as users write it.
    call: str = ""
    #: Returns the statements that initialize code with these imports, for "Start the cell with ...".
    initialization: Callable[[Collection[str]], str] = lambda _imports: ""
    #: The effect of such a call in a single process of another backend: an error, or no effect.
    effect_on_one_process: Literal["fails", "idle", ""] = ""
    #: Names that average gradients, of which code must use one, or () if the backend averages.
    averaging_names: tuple[str, ...] = ()
    #: The remedy for code that uses none of ``averaging_names``.
    averaging_remedy: str = ""
    #: Names that give all ranks the same weights, of which code must use one, or () for no check.
    synchronizing_names: tuple[str, ...] = ()
    #: The remedy for code that uses none of ``synchronizing_names``.
    synchronizing_remedy: str = ""
    #: Libraries whose trainers average gradients and divide data.
    trainers: tuple[str, ...] = ()
    #: Whether these trainers also initialize communication.
    trainers_initialize: bool = False
    #: The expression for the number of ranks.
    world_size: str = ""
    #: A regular expression that matches code that uses the backend.
    pattern: str = ""

    def find_initializer(self, code: CodeAnalysis) -> Call | None:
        """Return the first call that initializes communication, or None if there is none."""
        calls = (call for call in code.calls if call.short_name in self.initializers)
        return next((call for call in calls if call.name.startswith(self.package)), None)

    def format_call(self, call: Call) -> str:
        """Return a call that initializes communication, as users write it."""
        return self.call if self.package else f"{call.short_name}()"


@dataclass(frozen=True, slots=True)
class JobPackage:
    """A package that jobs use: its display name, its distribution, and other distributions that contain it.

    ``install`` is the subcommand of ``distdl`` that installs it, or "" if pip installs it.
    """

    title: str
    name: str
    alternatives: tuple[str, ...] = ()
    install: str = ""

    def version(self) -> str:
        """Return the installed version, or "" if it is not installed."""
        return find_version(self.name, *self.alternatives)


TORCH = JobPackage("torch", "torch")
TENSORFLOW = JobPackage("TensorFlow", frameworks.TENSORFLOW[0], frameworks.TENSORFLOW[1:])


def format_versions(packages: Iterable[JobPackage]) -> str:
    """Return the installed packages with their versions: ``torch 2.13.0, DeepSpeed 0.19.8``."""
    return ", ".join(f"{package.title} {version}" for package in packages if (version := package.version()))


class Backend(ABC):
    """A communication library for ranks."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: The names that users choose, which begin with the backend's name, each with the options that it sets:
    #: {"horovod-mpi": {"controller": "mpi"}}.
    labels: ClassVar[dict[str, dict[str, Any]]] = {}
    #: Alternative names of labels: {"mpi": "horovod-mpi"}.
    aliases: ClassVar[dict[str, str]] = {}
    #: Launchers of other tools, each with the label that replaces it.
    replaces: ClassVar[dict[str, str]] = {}
    #: The number of ports on node 0.
    ports: ClassVar[int] = 0
    #: The number of ports for each rank on its node.
    rank_ports: ClassVar[int] = 0
    #: Whether ranks communicate.
    communicates: ClassVar[bool] = True
    #: Sort key in lists of backends, lowest first.
    order: ClassVar[int] = 100
    #: The code patterns of training with this backend.
    usage: ClassVar[CodePattern] = CodePattern()

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return why this backend cannot run here, with the remedy, or "" if it can."""

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return the Python modules that every node needs."""
        return ()

    def detail(self, options: Any) -> str:
        """Return the installed versions of its packages as text, or "" if none is installed."""
        return format_versions(self.packages(options))

    def programs(self, options: Any) -> tuple[str, ...]:
        """Return the programs that every node needs, in the folder of its Python or on its PATH."""
        return ()

    def packages(self, options: Any) -> tuple[JobPackage, ...]:
        """Return the packages whose versions are recorded with a job."""
        return ()

    def checks(self, code: CodeAnalysis, spec: JobSpec) -> Iterator[Check | None]:
        """Yield the checks of code in addition to those by ``usage``, or None for a check that does not apply."""
        yield check_kernel_memory()
        yield check_cuda(code, spec)

    def job_environment(self, spec: JobSpec, restart_count: int) -> dict[str, str]:
        """Return the environment of every process of the job; ``restart_count`` is the number of previous starts."""
        return {}

    @abstractmethod
    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return how to run ``spec`` on ``placement``. Raises InvalidSpec if they do not fit."""


def build_common_environment(placement: Placement, slot: RankSlot) -> dict[str, str]:
    """Return the variables of a rank that all backends set: torchrun's variables, GPUs and threads.

    ``OMP_NUM_THREADS`` is the machine's cores divided by its ranks. Otherwise every rank would start a thread for each
    core.
    """
    local_size = placement.local_sizes[slot.node]
    environment = {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(len(placement.ranks)),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(slot.node),
        "NODE_RANK": str(slot.node),
        "OMP_NUM_THREADS": str(slot.cores or placement.cores_per_rank),
    }
    if slot.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = _list_visible_gpus(placement, slot)
    return environment


def _list_visible_gpus(placement: Placement, slot: RankSlot) -> str:
    """Return the GPUs of the rank's node in the order of local ranks, so that ``set_device(local_rank)`` works.

    If ranks share GPUs, or have several GPUs each, a rank sees only its own GPUs.
    """
    if len(slot.gpus) > 1:
        return ",".join(map(str, slot.gpus))
    node_gpus = [str(other.gpu) for other in placement.ranks if other.node == slot.node]
    return ",".join(node_gpus) if len(set(node_gpus)) == len(node_gpus) else str(slot.gpu)


# checks of code, for all backends ---------------------------------------------------------------


def check_kernel_memory(modules: Mapping[str, Any] = sys.modules) -> Check | None:
    """Check whether this kernel holds GPU memory, without importing torch. Return None if it has never used a GPU."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    reserved = ((device, cuda.memory_reserved(device)) for device in range(cuda.device_count()))
    findings = tuple(
        Finding(
            "warning",
            "kernel-holds-gpu",
            f"This kernel uses {size(byte_count)} on GPU {device}, which ranks cannot use.",
            "Delete the tensors and call torch.cuda.empty_cache(), or restart the kernel.",
        )
        for device, byte_count in reserved
        if byte_count >= _CUDA_CONTEXT_BYTES
    )
    return Check("GPU memory", "used by this kernel" if findings else "not used by this kernel", findings)


def check_cuda(code: CodeAnalysis, spec: JobSpec, devices: Sequence[int] | None = None) -> Check | None:
    """Check that this machine has a GPU for code that uses CUDA. Return None for other code and code that detects GPUs.

    ``devices`` are the GPUs of this machine (default: detected). Clusters check other machines.
    """
    if spec.cluster != "local" or code.uses(*_DETECTION_NAMES):
        return None
    calls = [call for call in code.calls if _uses_cuda(call)]
    if not calls:
        return None
    gpus = list_gpu_numbers() if devices is None else devices
    if gpus:
        return Check("CUDA", f"{plural(len(gpus), 'GPU')} here")
    first = next((call for call in calls if call.label in code.training_labels), calls[0])
    finding = Finding(
        "warning",
        "no-gpu",
        f"{ast.unparse(first.node)[:60]} in {first.location} needs a GPU, but this machine has none. Every rank would "
        "fail there.",
        'Use device = "cuda" if torch.cuda.is_available() else "cpu", or a compute_target with GPUs.',
    )
    return Check("CUDA", "no GPU on this machine", (finding,))


def _uses_cuda(call: Call) -> bool:
    if call.name.startswith("torch.cuda.") or (call.short_name == "cuda" and isinstance(call.node.func, ast.Attribute)):
        return call.short_name not in _CPU_FUNCTIONS
    arguments = [*call.node.args, *(keyword.value for keyword in call.node.keywords)]
    values = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
    return call.short_name != "print" and any(isinstance(value, str) and _DEVICE.fullmatch(value) for value in values)

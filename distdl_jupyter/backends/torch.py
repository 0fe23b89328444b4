"""torch.distributed: ranks connect to a TCP store with ``init_process_group()`` and the ``env://`` variables.

The variables are those of torchrun (https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"), so
a script for torchrun runs unchanged.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from distdl_jupyter.backends.base import TORCH, TRAINERS, Backend, CodePattern, JobPackage, build_common_environment
from distdl_jupyter.core.errors import Check, Finding, InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.machine import list_gpu_numbers
from distdl_jupyter.core.plan import Placement, Plan, RankSlot, option
from distdl_jupyter.core.source import Call, CodeAnalysis
from distdl_jupyter.core.spec import JobSpec


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Settings of the torch backend."""

    transport: str = option(
        "auto",
        "communication library; auto: Gloo for CPU tensors, NCCL for GPU tensors",
        choices=("auto", "gloo", "nccl"),
    )


class TorchBackend(Backend):
    """torch.distributed over Gloo or NCCL."""

    name = "torch"
    Options = TorchOptions
    labels: ClassVar[dict[str, dict[str, Any]]] = {
        "torch": {},
        "torch-gloo": {"transport": "gloo"},
        "torch-nccl": {"transport": "nccl"},
    }
    aliases: ClassVar[dict[str, str]] = {"gloo": "torch-gloo", "nccl": "torch-nccl"}
    replaces: ClassVar[dict[str, str]] = {"torchrun": "torch", "accelerate": "torch"}
    ports = 1
    order = 2
    usage = CodePattern(
        title="torch.distributed",
        initializers=("init_process_group", "init_device_mesh"),
        call="torch.distributed.init_process_group()",
        initialization=lambda _imports: "`import torch.distributed as dist` and `dist.init_process_group()`",
        effect_on_one_process="fails",
        averaging_names=("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard",
                         "all_reduce", "parallelize_module", "replicate", "distribute_module"),
        averaging_remedy="Wrap the model: torch.nn.parallel.DistributedDataParallel(model).",
        trainers=TRAINERS,
        trainers_initialize=True,
        world_size="dist.get_world_size()",
        pattern=r"\binit_process_group\b|\btorch\.distributed\b",
    )  # fmt: skip

    def unavailable(self, options: TorchOptions) -> str:
        """Return the remedy if torch is not installed, without importing it."""
        if find_spec("torch") is None:
            return "torch is not installed in this environment. Run: pip install 'distdl-jupyter[torch]'"
        return ""

    def modules(self, options: TorchOptions) -> tuple[str, ...]:
        """Return torch."""
        return ("torch",)

    def packages(self, options: TorchOptions) -> tuple[JobPackage, ...]:
        """Return torch."""
        return (TORCH,)

    def job_environment(self, spec: JobSpec, restart_count: int) -> dict[str, str]:
        """Return torchrun's variables that describe the whole job."""
        return {"TORCHELASTIC_RUN_ID": spec.id, "TORCHELASTIC_RESTART_COUNT": str(restart_count),
                "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts)}  # fmt: skip

    def checks(self, code: CodeAnalysis, spec: JobSpec) -> Iterator[Check | None]:
        """Also yield the check that NCCL has enough GPUs."""
        yield from super().checks(code, spec)
        yield check_nccl(code, spec)

    def plan(self, spec: JobSpec, placement: Placement, options: TorchOptions) -> Plan:
        """Return the plan: rank 0 hosts the store at the reserved port of the first node."""
        if options.transport == "nccl" and not can_share_gpus(spec.environment_variables):
            _check_gpus(placement)
        job_variables = {
            "MASTER_ADDR": placement.address,
            "MASTER_PORT": str(placement.ports[0]),
            # All ranks have the same role, in torchrun's terms.
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": str(len(placement.ranks)),
            "GROUP_WORLD_SIZE": str(placement.node_count),
        }
        if options.transport != "auto":
            job_variables["DISTDL_TORCH_TRANSPORT"] = options.transport
        return Plan(tuple(self._build_rank_variables(placement, slot) | job_variables for slot in placement.ranks))

    def _build_rank_variables(self, placement: Placement, slot: RankSlot) -> dict[str, str]:
        interface = slot.interface or placement.interface
        variables = {"ROLE_RANK": str(slot.rank), "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        return build_common_environment(placement, slot) | variables


def _check_gpus(placement: Placement) -> None:
    """Raise InvalidSpec if two ranks would share a GPU, because NCCL would fail with "Duplicate GPU detected"."""
    nodes = ((0 if placement.emulated else slot.node, slot.gpu) for slot in placement.ranks)
    count = len({(node, gpu) for node, gpu in nodes if gpu is not None})
    ranks = len(placement.ranks)
    if count < ranks:
        raise InvalidSpec(
            f"NCCL needs {plural(ranks, 'GPU')} for {plural(ranks, 'process')}, but there "
            f"{'is' if count == 1 else 'are'} {plural(count, 'GPU') if count else 'none'}.",
            code="nccl-needs-gpus",
            field="distributed_backend",
            hint=f"Use {f'-p {count}, or ' if count and placement.node_count == 1 else ''}-b torch-gloo.",
        )


def can_share_gpus(variables: Mapping[str, str]) -> bool:
    """Return whether these variables allow NCCL (2.32 or later) to run several ranks on one GPU."""
    return variables.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0"


def check_nccl(
    code: CodeAnalysis, spec: JobSpec, devices: Sequence[int] | None = None, environment: Mapping[str, str] = os.environ
) -> Check | None:
    """Check that this machine has a GPU for each process if the code uses NCCL. Return None for other code."""
    calls = [(call, _get_transport(call)) for call in code.calls if call.name == "torch.distributed.init_process_group"]
    first = next((call for call, transport in calls if transport == "nccl"), None)
    if spec.cluster != "local" or first is None or can_share_gpus({**environment, **spec.environment_variables}):
        return None
    count = len(list_gpu_numbers() if devices is None else devices)
    processes = plural(spec.process_count, "process")
    summary = f"{plural(count, 'GPU')} for {processes}"
    if count >= spec.process_count:
        return Check("NCCL", summary)
    is_certain = all(transport == "nccl" for _, transport in calls)
    if not count and not is_certain:
        return None  # without GPUs, the code uses another transport
    finding = Finding(
        "error" if is_certain else "warning",
        "nccl-call-needs-gpus",
        f"NCCL in {first.location} needs {plural(spec.process_count, 'GPU')} for {processes}, but this machine has "
        f"{plural(count, 'GPU') if count else 'none'}.",
        f'Use {f"-p {count}, or " if count else ""}Gloo: init_process_group("gloo").',
    )
    return Check("NCCL", summary, (finding,))


def _get_transport(call: Call) -> str:
    """Return the transport in a call of ``init_process_group``, or "" if it is not a literal."""
    keyword_value = next((keyword.value for keyword in call.node.keywords if keyword.arg == "backend"), None)
    transport = keyword_value or next(iter(call.node.args), None)
    return str(transport.value).lower() if isinstance(transport, ast.Constant) else ""

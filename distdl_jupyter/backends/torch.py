"""torch.distributed: ranks meet at a TCP store with ``init_process_group()`` and the ``env://`` variables.

The variables are those that torchrun sets (https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment
Variables"), so a script written for torchrun runs unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.backends.base import Backend, common_environment
from distdl_jupyter.backends.usage import TORCH, TRAINERS, Package, Usage, may_share_gpus
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, Plan, RankSlot

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Settings of the torch backend."""

    transport: str = field(
        default="auto",
        metadata={"help": "communication library; auto: Gloo for CPU tensors, NCCL for GPU tensors",
                  "choices": ("auto", "gloo", "nccl")},
    )  # fmt: skip


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
    usage = Usage(
        title="torch.distributed",
        meets=("init_process_group", "init_device_mesh"),
        call="torch.distributed.init_process_group()",
        begin=lambda _imports: "`import torch.distributed as dist` and `dist.init_process_group()`",
        alone="fails",
        averages=("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "all_reduce",
                  "parallelize_module", "replicate", "distribute_module"),
        average="Wrap the model: torch.nn.parallel.DistributedDataParallel(model).",
        trainers=TRAINERS,
        trainers_meet=True,
        world_size="dist.get_world_size()",
        words=r"\binit_process_group\b|\btorch\.distributed\b",
    )  # fmt: skip

    def unavailable(self, options: TorchOptions) -> str:
        """Torch must be installed; it is looked for without importing it."""
        if find_spec("torch") is None:
            return "torch is not installed in this environment. Run: pip install 'distdl-jupyter[torch]'"
        return ""

    def modules(self, options: TorchOptions) -> tuple[str, ...]:
        """Return torch."""
        return ("torch",)

    def packages(self, options: TorchOptions) -> tuple[Package, ...]:
        """Return torch."""
        return (TORCH,)

    def job_environment(self, spec: JobSpec, restart_count: int) -> dict[str, str]:
        """Return what torchrun says of a job that restarts."""
        return {"TORCHELASTIC_RUN_ID": spec.id, "TORCHELASTIC_RESTART_COUNT": str(restart_count),
                "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts)}  # fmt: skip

    def plan(self, spec: JobSpec, placement: Placement, options: TorchOptions) -> Plan:
        """Rank 0 hosts the store at the reserved port of the first node."""
        if options.transport == "nccl" and not may_share_gpus(spec.environment_variables):
            _check_gpus(placement)
        rendezvous_variables = {
            "MASTER_ADDR": placement.address,
            "MASTER_PORT": str(placement.ports[0]),
        }
        if options.transport != "auto":
            rendezvous_variables["DISTDL_TORCH_TRANSPORT"] = options.transport
        return Plan(
            environments=tuple(
                common_environment(placement, slot)
                | _role(placement, slot)
                | rendezvous_variables
                | _interface(placement.interface_of(slot))
                for slot in placement.ranks
            )
        )


def _role(placement: Placement, slot: RankSlot) -> dict[str, str]:
    """Return torchrun's role variables: all ranks have one role."""
    size = str(len(placement.ranks))
    return {"GROUP_WORLD_SIZE": str(placement.node_count), "ROLE_NAME": "default", "ROLE_RANK": str(slot.rank),
            "ROLE_WORLD_SIZE": size}  # fmt: skip


def _interface(name: str) -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def _check_gpus(placement: Placement) -> None:
    """Refuse NCCL without a device for each rank: it stops with "Duplicate GPU detected" when two share one."""
    nodes = ((0 if placement.emulated else slot.node, slot.gpu) for slot in placement.ranks)
    count = len({(node, gpu) for node, gpu in nodes if gpu is not None})
    ranks = len(placement.ranks)
    if count < ranks:
        raise InvalidSpec(
            f"NCCL needs {plural(ranks, 'GPU')} for {plural(ranks, 'process')}, but there "
            f"{'is' if count == 1 else 'are'} {plural(count, 'GPU') if count else 'none'}.",
            code="nccl-needs-gpus",
            field="distributed_backend",
            hint=f"Type {f'-p {count}, or ' if count and placement.node_count == 1 else ''}-b torch-gloo.",
        )

"""Advice rules about machines: retired sizes, the network between nodes, GPUs, cores and disks.

"Scale up before out": gradients use NVLink within a machine and the network between machines, so one machine should
have as many GPUs as possible (Azure's reference architecture for distributed training with Horovod; Databricks' "single
machine first"). Several machines need InfiniBand ("r" in a size's name).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import find_size
from distdl_jupyter.core.errors import Level
from distdl_jupyter.core.humanize import TIMES, plural
from distdl_jupyter.preflight.advice import Advice, RuleInput

if TYPE_CHECKING:
    from fractions import Fraction

    from distdl_jupyter.azure import VmSize


def check_retired_size(case: RuleInput) -> Advice | None:
    """Suggest the successor of a retired size."""
    request, size = case.request, case.request.vm_size
    if size is None or not size.is_retired:
        return None
    change: dict[str, Any] = {"vm_size": size.successor}
    if request.process_count_per_node == size.whole_gpus:
        change["process_count_per_node"] = find_size(size.successor).whole_gpus
    return Advice(
        "retired",
        "error",
        "Retired size",
        f"Azure retired {size.name} on {size.retirement_date}. {size.successor} has {size.successor_reason}",
        action=f"Use {size.successor}",
        change=change,
        source=size.successor_source,
    )


def prefer_one_machine(case: RuleInput) -> Advice | None:
    """Warn about several machines if one is enough, or if their network is slow."""
    request, size = case.request, case.request.vm_size
    if size is None or size.is_retired or request.node_count < 2:
        return None
    needed = request.node_count * min(request.process_count_per_node, size.whole_gpus)
    single = _find_single(size, needed, case.catalogue)
    network = _describe_network(size)
    if single is not None:
        headline = f"One machine instead of {request.node_count}"
        level: Level = "info" if size.infiniband else "warning"
        code = "scale-up" if size.infiniband else "no-infiniband"
        return _advise_machine(code, headline, f"{network} {_describe(single, size, needed)}", 1, single, needed, level)
    return None if size.infiniband else _suggest_fast_network(size, needed, network, case.catalogue)


def _describe_network(size: VmSize) -> str:
    if size.infiniband:
        return f"{size.name} has InfiniBand, but a single machine needs no network."
    ethernet = f"{size.ethernet_text} Ethernet" if size.ethernet_text else "Ethernet"
    if size.infiniband is None:
        return f"The documentation does not state InfiniBand for {size.name}, so gradients would use {ethernet}."
    return f"{size.name} has no InfiniBand, so gradients would use {ethernet}."


def _suggest_fast_network(size: VmSize, needed: int, network: str, catalogue: Sequence[VmSize]) -> Advice | None:
    candidates = [s for s in catalogue if _is_suitable(s, size) and s.infiniband]
    if not candidates:
        return Advice("no-infiniband", "warning", "No InfiniBand between the nodes", network)
    best = min(candidates, key=lambda s: (_count_nodes(needed, s) * s.whole_gpus - needed, *_compare(s, size)))
    nodes = _count_nodes(needed, best)
    gpus = _format_gpus(best, needed)
    reason = f"{network} {nodes} {TIMES} {best.name} have {gpus}, connected by InfiniBand {best.fabric_text}."
    return _advise_machine("no-infiniband", "No InfiniBand between the nodes", reason, nodes, best, needed)


def _advise_machine(
    code: str, headline: str, reason: str, nodes: int, size: VmSize, needed: int, level: Level = "warning"
) -> Advice:
    change = {"vm_size": size.name, "node_count": nodes, "process_count_per_node": needed // nodes}
    action = f"Use {nodes} {TIMES} {size.name}"
    return Advice(code, level, headline, reason, action=action, change=change)


def _find_single(size: VmSize, needed: int, catalogue: Sequence[VmSize]) -> VmSize | None:
    candidates = [s for s in catalogue if s.gpu_count >= needed and (s.name == size.name or _is_suitable(s, size))]
    return min(candidates, key=lambda s: (s.gpu_count - needed, s.name != size.name, *_compare(s, size)), default=None)


def _is_suitable(other: VmSize, size: VmSize) -> bool:
    """Return whether code for ``size`` also runs and fits on ``other``, whose GPUs must have NVLink."""
    return (
        not other.is_retired
        and other.nvlink is True
        and other.is_nvidia is size.is_nvidia
        and other.has_arm_host is size.has_arm_host
        and (other.gpu_memory_gib or 0) >= (size.gpu_memory_gib or 0)
    )


def _compare(other: VmSize, size: VmSize) -> tuple[bool, Fraction | int, int]:
    return other.gpu != size.gpu, (other.gpu_memory_gib or 0) - (size.gpu_memory_gib or 0), other.vcpus or 0


def _count_nodes(needed: int, size: VmSize) -> int:
    """Return the minimum number of machines for ``needed`` ranks in equal shares, one GPU per rank."""
    min_nodes = -(-needed // size.whole_gpus)
    return next(nodes for nodes in range(min_nodes, needed + 1) if needed % nodes == 0)


def _describe(single: VmSize, size: VmSize, needed: int) -> str:
    if single.name == size.name:
        return f"One {single.name} has {single.gpus_text}: all {needed} processes fit."
    text = f"One {single.name} has {_format_gpus(single, needed, size)}"
    return f"{text}, connected by NVLink." if single.nvlink else f"{text}."


def _format_gpus(size: VmSize, needed: int, previous: VmSize | None = None) -> str:
    prefix = "the same " if previous is not None and previous.gpu == size.gpu and size.whole_gpus == needed else ""
    return f"{prefix}{max(needed, size.whole_gpus)} {TIMES} {size.gpu} {size.memory_text}"


def check_gpu_count(case: RuleInput) -> Advice | None:
    """Warn if ranks share a GPU: they wait for each other, and Horovod and NCCL expect one rank per GPU."""
    request, size = case.request, case.request.vm_size
    if request.use_gpu is False:
        return None
    if request.compute_target == "local" and request.gpus and request.process_count > request.gpus:
        nodes = request.node_count if request.node_count <= request.gpus else 1
        return _warn_shared("This machine", request.gpus, request.process_count, nodes, request.gpus // nodes)
    if size is None or size.is_retired or request.process_count_per_node <= size.whole_gpus:
        return None
    return _warn_shared(size.name, size.whole_gpus, request.process_count_per_node, request.node_count, size.whole_gpus)


def _warn_shared(owner: str, gpus: int, ranks: int, nodes: int, per_node: int) -> Advice:
    pronoun = "it" if gpus == 1 else "them"
    return Advice(
        "more-processes-than-gpus",
        "warning",
        "More processes than GPUs",
        f"{owner} has {plural(gpus, 'GPU')}, so {ranks} processes would share {pronoun}, which NCCL does not support.",
        action=f"Use {plural(per_node, 'process')} per node",
        change={"node_count": nodes, "process_count_per_node": per_node},
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html",
    )


def check_core_count(case: RuleInput) -> Advice | None:
    """Warn if a machine without GPUs has fewer cores than ranks, because the extra ranks do not train faster."""
    request = case.request
    if request.compute_target != "local" or not request.cores or request.gpus:
        return None
    if request.process_count <= request.cores:
        return None
    nodes = request.node_count if request.node_count <= request.cores else 1
    change = {"node_count": nodes, "process_count_per_node": request.cores // nodes}
    return Advice(
        "more-processes-than-cores",
        "info",
        "More processes than cores",
        f"This machine has {plural(request.cores, 'core')} for {request.process_count} processes. Fine for a test, "
        "but it will not train faster.",
        action=f"Use {nodes} {TIMES} {request.cores // nodes}",
        change=change,
    )


def check_local_disk(case: RuleInput) -> Advice | None:
    """Warn about local disks that Azure does not encrypt."""
    size = case.request.vm_size
    if size is None or size.is_retired or size.local_nvme_encrypted is not False:
        return None
    return Advice(
        "open-local-disk",
        "info",
        "Local disk is not encrypted",
        f"Azure Storage encryption does not cover the local NVMe disk of {size.name}, even with encryption at host, "
        "and the disk is ephemeral. Do not store sensitive data on it.",
        source=size.notes,
    )

"""Ray: the nodes of a job form one Ray cluster, and rank 0 runs the code as its driver.

One rank runs on each node (``worker.hooks.ray_cluster``), and ``ray.init()`` without arguments finds the cluster.
"""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from typing import Any, ClassVar

from distdl_jupyter.backends.base import (
    TENSORFLOW,
    TORCH,
    TRAINERS,
    Backend,
    CodePattern,
    JobPackage,
    build_common_environment,
)
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, Plan, RankSlot
from distdl_jupyter.core.spec import JobSpec


class RayBackend(Backend):
    """A Ray cluster of the job's nodes."""

    name = "ray"
    labels: ClassVar[dict[str, dict[str, Any]]] = {"ray": {}}
    #: Ports of the head node: Ray itself, its client proxy (which cannot be disabled), and the rendezvous of the nodes.
    ports = 3
    #: Ports of Ray's agents on each node. Ports that Ray chooses could collide with those of other programs of the job.
    rank_ports = 4
    order = 4
    usage = CodePattern(title="Ray", trainers=TRAINERS, pattern=r"\bimport ray\b|\bfrom ray\b|\bray\.(init|remote)\b")

    def unavailable(self, options: Any) -> str:
        """Return the remedy if Ray is not installed or too old to require a token, without importing it."""
        from distdl_jupyter.worker.hooks import ray_cluster  # lazy: only this backend needs it

        if find_spec("ray") is None:
            return "Ray is not installed in this environment. Run: pip install 'distdl-jupyter[ray]'"
        if not ray_cluster.has_authentication(version := metadata.version("ray")):
            return (
                f"Ray {version} accepts connections from anyone on the network. Run: pip install --upgrade "
                "'distdl-jupyter[ray]'"
            )
        return ""

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return Ray."""
        return ("ray",)

    def packages(self, options: Any) -> tuple[JobPackage, ...]:
        """Return Ray and the frameworks that its tasks may use."""
        return (JobPackage("Ray", "ray"), TORCH, TENSORFLOW)

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return the plan: every node gets the address of the head and its own ports."""
        if spec.process_count_per_node != 1:
            raise InvalidSpec(
                "Ray distributes the CPUs and GPUs of each node itself, so a job with Ray runs one process per node.",
                code="ray-one-process-per-node",
                field="process_count_per_node",
                hint="Set process_count_per_node to 1, and set the resources of each task: "
                "@ray.remote(num_cpus=..., num_gpus=...)",
            )
        return Plan(tuple(_build_environment(placement, slot) for slot in placement.ranks))


def _build_environment(placement: Placement, slot: RankSlot) -> dict[str, str]:
    node = {
        "address": placement.address,
        "ports": placement.ports,
        "own_address": slot.address,
        "own_ports": slot.ports,
        "cpus": str(slot.cores or placement.cores_per_rank),
        "shares_machine": placement.emulated and slot.rank != 0,
    }
    environment = build_common_environment(placement, slot)
    if not placement.emulated:
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # Ray assigns all GPUs of the node to its tasks
    return environment | {
        "DISTDL_RAY": json.dumps(node),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
    }

"""The present status of clusters: their nodes, or in one sentence why they cannot be used. Reading it never raises.

A plug-in may not respond for a long time. Each runs in a thread of its own, so that it does not delay the others.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.clusters.base import Check, Cluster, Machines, NodeInfo
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError

#: The problem of a cluster whose machines can be created by this package and have not been.
ABSENT = "The machines have not been created yet."


@dataclass(frozen=True, slots=True)
class ClusterStatus(ClusterConfig):
    """A cluster with its present status; ``problem`` says why it cannot be used now ("" when it can).

    ``code`` is the stable name of the problem. ``looked`` is False as long as it has never answered.
    """

    title: str = ""
    detail: str = ""
    problem: str = ""
    remedy: str = ""
    code: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    far: bool = False
    looked: bool = True
    #: Its machines as a whole, where they are made and unmade from here.
    machines: Machines | None = None
    can_create: bool = False
    #: The number of nodes that cost money now, and what all of them cost in an hour, None when that is not known.
    billed: int = 0
    cost_per_hour: float | None = None
    currency: str = ""

    @classmethod
    def of(cls, target: ClusterConfig, **known: Any) -> ClusterStatus:
        """Return the status of a cluster, with the cost of its nodes."""
        billed = [node for node in known.get("nodes", ()) if node.billed]
        costs = [node.cost_per_hour for node in billed if node.cost_per_hour is not None]
        return cls(
            target.name,
            target.kind,
            target.options,
            target.named,
            billed=len(billed),
            cost_per_hour=sum(costs) if billed and len(costs) == len(billed) else None,
            currency=next((node.currency for node in billed if node.currency), ""),
            **{"title": target.kind, **known},
        )

    @property
    def up(self) -> int:
        """How many nodes answer."""
        return sum(node.state == "up" for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of the nodes that answer."""
        return sum(node.gpus for node in self.nodes if node.state == "up")


def plugin(target: ClusterConfig) -> tuple[Cluster, Any]:
    """Return a cluster's plug-in and options. Raises InvalidSpec, PluginUnavailable."""
    cluster: Cluster = registry.get("clusters", target.kind)
    return cluster, registry.check_options("clusters", target.kind, dict(target.options))


def look(target: ClusterConfig) -> ClusterStatus:
    """Return the present status of a cluster; an error is its ``problem``. This may take seconds."""
    try:
        return _look(target)
    except DistDLError as error:
        return ClusterStatus.of(target, problem=error.message, remedy=error.hint, code=error.code)
    except Exception as error:  # noqa: BLE001 - a plug-in of somebody else must not hide the other clusters
        problem = f"The plug-in failed: {type(error).__name__}: {error}"
        return ClusterStatus.of(target, problem=problem, code="cluster-plugin-failed")


def _look(target: ClusterConfig) -> ClusterStatus:
    cluster, options = plugin(target)
    problem = cluster.unavailable(options)
    machines = cluster.machines(options) if cluster.can_create and not problem else None
    remedy = ""
    if machines is not None and not machines.exists:
        problem, remedy = ABSENT, f"Create them: distdl clusters compute create {target.name}"
    nodes = () if problem else tuple(cluster.nodes(options))
    return ClusterStatus.of(
        target,
        title=cluster.title or cluster.name,
        detail="" if problem else (machines.detail if machines else "") or cluster.detail(options),
        problem=problem,
        remedy=remedy,
        nodes=nodes,
        far=cluster.far,
        machines=machines,
        can_create=cluster.can_create,
    )


def unknown(target: ClusterConfig) -> ClusterStatus:
    """Return the status of a cluster that has not responded yet."""
    return ClusterStatus.of(target, looked=False)


def silent(target: ClusterConfig, seconds: float, last: ClusterStatus | None = None) -> ClusterStatus:
    """Return the status of a cluster that has not responded for ``seconds``: its last known nodes, as unknown."""
    known = last or unknown(target)
    nodes = tuple(dataclasses.replace(node, state="unknown", detail="", load=None, ranks=None) for node in known.nodes)
    return dataclasses.replace(known, problem=f"No response for {seconds:g} s.", code="cluster-silent", nodes=nodes)


def look_at_all(targets: Sequence[ClusterConfig], seconds: float) -> list[ClusterStatus]:
    """Return the present status of several clusters within ``seconds``; all are probed at once."""
    results: dict[int, ClusterStatus] = {}
    threads = [
        threading.Thread(target=lambda at=at, target=target: results.update({at: look(target)}), daemon=True)
        for at, target in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    finished = dict(results)
    return [finished.get(at) or silent(target, seconds) for at, target in enumerate(targets)]


def check(target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None = None) -> list[Check]:
    """Check every node for problems that would keep a job from running; this takes up to 30 seconds.

    ``needs`` holds the ``modules`` and ``programs`` of a backend. An error is a failed check of the whole cluster.
    """
    try:
        cluster, options = plugin(target)
        if reason := cluster.unavailable(options):
            return [_red(reason, "", "cluster-unavailable")]
        rows = cluster.checks(options, **(needs or {}))
        return rows or [_nothing(cluster, options)]
    except DistDLError as error:
        return [_red(error.message, error.hint, error.code)]
    except Exception as error:  # noqa: BLE001 - as above
        return [
            _red(
                f"The plug-in failed: {type(error).__name__}: {error}",
                "Report the error to the authors of the plug-in.",
                "cluster-plugin-failed",
            )
        ]


def _red(message: str, remedy: str, code: str) -> Check:
    return Check("", "Cluster", "error", message, remedy, code)


def _nothing(cluster: Cluster, options: Any) -> Check:
    """Return the row of a kind that has no checks of its own: that its nodes answer, or which do not."""
    down = [node.name for node in cluster.nodes(options) if node.state == "down"]
    if down:
        return Check(
            "",
            "Reachable",
            "error",
            f"{', '.join(down)} cannot be used.",
            "Check these machines.",
            code="cluster-reachable",
        )
    return Check("", "Reachable", "ok", "All nodes respond.")


def needs(backend_label: str, options: Mapping[str, Any] | None = None) -> dict[str, Sequence[str]]:
    """Return the ``modules`` and ``programs`` that a backend needs on every node. Raises InvalidSpec."""
    backend, checked = registry.backend(backend_label, dict(options or {}))
    return {"modules": backend.modules(checked), "programs": backend.programs(checked)}

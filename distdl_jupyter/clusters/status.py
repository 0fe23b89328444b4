"""The current status of clusters: their nodes, or one sentence why they cannot be used. A probe never raises.

A plug-in may block for a long time, so each one runs in its own thread and does not delay the others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.clusters.base import Cluster, Machines, NodeCheck, NodeInfo, Provisioner
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError


@dataclass(frozen=True, slots=True)
class ClusterStatus(ClusterConfig):
    """A cluster with its current status; ``code`` is the stable identifier of the problem."""

    title: str = ""
    detail: str = ""
    #: The reason why the cluster cannot be used now, or "".
    problem: str = ""
    remedy: str = ""
    code: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    is_remote: bool = False
    #: Whether the cluster has answered at least once.
    checked: bool = True
    #: The machines as a whole, if this package creates and deletes them.
    machines: Machines | None = None
    can_create: bool = False
    #: The number of nodes that cost money now, and their total cost per hour. None: the cost is unknown.
    billed: int = 0
    cost_per_hour: float | None = None
    currency: str = ""

    @classmethod
    def from_config(cls, target: ClusterConfig, **fields: Any) -> ClusterStatus:
        """Return the status of a cluster, with the cost of its nodes."""
        billed = [node for node in fields.get("nodes", ()) if node.billed]
        costs = [node.cost_per_hour for node in billed if node.cost_per_hour is not None]
        cost = sum(costs) if billed and len(costs) == len(billed) else None
        fields |= {"billed": len(billed), "cost_per_hour": cost}
        fields["currency"] = next((node.currency for node in billed if node.currency), "")
        return cls(target.name, target.kind, target.options, target.named, **{"title": target.kind, **fields})


def load_plugin(target: ClusterConfig) -> tuple[Cluster, Any]:
    """Return a cluster's plug-in and options. Raises InvalidSpec, PluginUnavailable."""
    cluster: Cluster = registry.get("clusters", target.kind)
    return cluster, registry.check_options("clusters", target.kind, dict(target.options))


def probe(target: ClusterConfig) -> ClusterStatus:
    """Return the current status of a cluster; an error is its ``problem``. This may take seconds."""
    try:
        cluster, options = load_plugin(target)
        problem, remedy = cluster.unavailable(options), ""
        machines = cluster.get_machines(options) if isinstance(cluster, Provisioner) and not problem else None
        if machines is not None and not machines.exists:
            problem = "The machines have not been created yet."
            remedy = f"Create them: distdl clusters compute create {target.name}"
        return ClusterStatus.from_config(
            target,
            title=cluster.title or cluster.name,
            detail="" if problem else (machines.detail if machines else "") or cluster.detail(options),
            problem=problem,
            remedy=remedy,
            nodes=() if problem else tuple(cluster.list_nodes(options)),
            is_remote=cluster.is_remote,
            machines=machines,
            can_create=isinstance(cluster, Provisioner),
        )
    except Exception as error:  # noqa: BLE001 - a failing plug-in must not hide the other clusters
        plugin_error = _make_plugin_error(error)
        problem, remedy = plugin_error.message, plugin_error.hint
        return ClusterStatus.from_config(target, problem=problem, remedy=remedy, code=plugin_error.code)


def _make_plugin_error(error: Exception) -> DistDLError:
    if isinstance(error, DistDLError):
        return error
    hint = "Report the error to the authors of the plug-in."
    return DistDLError(f"The plug-in failed: {type(error).__name__}: {error}", code="cluster-plugin-failed", hint=hint)


def mark_unknown(target: ClusterConfig, seconds: float, previous: ClusterStatus | None = None) -> ClusterStatus:
    """Return the status of a cluster that has not responded for ``seconds``: its last known nodes, as unknown."""
    status = previous or ClusterStatus.from_config(target, checked=False)
    nodes = tuple(dataclasses.replace(node, state="unknown", detail="", load=None, ranks=None) for node in status.nodes)
    return dataclasses.replace(status, problem=f"No response for {seconds:g} s.", code="cluster-silent", nodes=nodes)


def check(target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None = None) -> list[NodeCheck]:
    """Check every node for problems that prevent jobs of a backend with these needs; this takes up to 30 seconds."""
    try:
        cluster, options = load_plugin(target)
        if reason := cluster.unavailable(options):
            return [NodeCheck("", "Cluster", "error", reason, "", "cluster-unavailable")]
        if rows := cluster.run_checks(options, **(needs or {})):
            return rows
        if down_names := ", ".join(node.name for node in cluster.list_nodes(options) if node.state == "down"):
            text = f"{down_names} cannot be used."
            return [NodeCheck("", "Reachable", "error", text, "Check these machines.", "cluster-reachable")]
        return [NodeCheck("", "Reachable", "ok", "All nodes respond.")]
    except Exception as error:  # noqa: BLE001 - as in ``probe``
        plugin_error = _make_plugin_error(error)
        return [NodeCheck("", "Cluster", "error", plugin_error.message, plugin_error.hint, plugin_error.code)]


def get_needs(backend_label: str) -> dict[str, Sequence[str]]:
    """Return the ``modules`` and ``programs`` that a backend needs on every node. Raises InvalidSpec."""
    backend, options = registry.load_backend(backend_label, {})
    return {"modules": backend.modules(options), "programs": backend.programs(options)}


# the newest status and checks, for pages and forms ------------------------------------------------
# At most one probe per cluster runs at a time, in its own thread, so a cluster that does not respond delays neither
# requests nor other clusters. Until a probe has ended, the previous answer is used.


#: Seconds that a request waits for a cluster: if its status is unknown, and if a previous status is known.
FIRST_SECONDS, REFRESH_SECONDS = 1.5, 0.3
#: Seconds after which a form probes a cluster again: for the nodes, and for checks without errors.
_NODES_FRESH_SECONDS, _CHECKS_FRESH_SECONDS = 15.0, 300.0


@dataclass(slots=True)
class _Probe:
    """A running or completed probe; ``previous`` is the answer of the previous probe, or None for the first probe."""

    started_at: float
    answer: Future[Any]
    previous: Any

    @property
    def latest(self) -> Any:
        """The latest answer, or None if there is none yet."""
        return self.answer.result() if self.answer.done() else self.previous


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """The status and checks of a cluster, None while unknown. ``pending`` is true while probes run."""

    status: ClusterStatus | None
    checks: tuple[NodeCheck, ...] | None
    pending: bool


class StatusCache:
    """The newest status and checks of each cluster. A cluster is unresponsive after ``seconds`` without a response."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._timeout = seconds
        self._lock = threading.Lock()
        self._probes: dict[str, _Probe] = {}

    def start(self, function: Callable[..., Any], target: ClusterConfig, *needs: Any, max_age: float = 0.0) -> _Probe:
        """Return the running call, or one that started at most ``max_age`` seconds ago, else start a new one."""
        fields = [function.__name__, target.name, target.kind, dict(target.options), needs]
        key = json.dumps(fields, sort_keys=True, default=str)
        with self._lock:
            now, previous = time.monotonic(), self._probes.get(key)
            if previous is not None and not (previous.answer.done() and now - previous.started_at >= max_age):
                return previous
            current = self._probes[key] = _Probe(now, Future(), None if previous is None else previous.latest)
        work = lambda: current.answer.set_result(function(target, *needs))  # noqa: E731
        threading.Thread(target=work, name="distdl-probe", daemon=True).start()
        return current

    async def get_status(self, target: ClusterConfig) -> ClusterStatus:
        """Return the current status of a cluster, or the last known one if the cluster responds slowly."""
        current = self.start(probe, target)
        timeout = min(self._timeout, FIRST_SECONDS if current.latest is None else REFRESH_SECONDS)
        await asyncio.wait([asyncio.wrap_future(current.answer)], timeout=timeout)
        if not current.answer.done() and time.monotonic() - current.started_at >= self._timeout:
            return mark_unknown(target, self._timeout, current.latest)
        return current.latest or ClusterStatus.from_config(target, checked=False)

    async def run_checks(self, target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None) -> list[NodeCheck]:
        """Return new checks of a cluster; requests during a check share its results."""
        return await asyncio.shield(asyncio.wrap_future(self.start(check, target, needs).answer))

    def get_cached(
        self, target: ClusterConfig, needs: Mapping[str, Sequence[str]], timeout: float = 1.0, *, fresh: bool = False
    ) -> CachedStatus:
        """Return the last known status of a cluster; wait for at most ``timeout`` seconds if there is none.

        ``needs`` are the ``modules`` and ``programs`` of the backend. With ``fresh``, probe the cluster again.
        """
        max_age = 0.0 if fresh else _NODES_FRESH_SECONDS
        current = self.start(probe, target, max_age=max_age)
        if current.latest is None:
            concurrent.futures.wait([current.answer], timeout)
        status: ClusterStatus | None = current.latest
        if status is None or status.problem:
            return CachedStatus(status, None if status is None else (), pending=not current.answer.done())
        checks = self.start(check, target, needs, max_age=_CHECKS_FRESH_SECONDS)
        has_problem = any(node.state == "down" for node in status.nodes)
        if fresh or has_problem or any(row.level == "error" for row in checks.latest or ()):
            checks = self.start(check, target, needs, max_age=max_age)
        rows, pending = checks.latest, not (current.answer.done() and checks.answer.done())
        return CachedStatus(current.latest, None if rows is None else tuple(rows), pending)


#: The cache of the forms in this process.
FORM_CACHE = StatusCache()


def probe_all(targets: Sequence[ClusterConfig], seconds: float) -> list[ClusterStatus]:
    """Return the current status of several clusters within ``seconds`` seconds."""
    cache = StatusCache(seconds)
    running = [cache.start(probe, target) for target in targets]
    concurrent.futures.wait([current.answer for current in running], seconds)
    return [current.latest or mark_unknown(target, seconds) for current, target in zip(running, targets, strict=True)]

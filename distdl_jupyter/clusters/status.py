"""The current status of clusters: their nodes, or one sentence why they cannot be used. A probe never raises.

A plug-in may block for a long time, so each one runs in its own thread and does not delay the others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distdl_jupyter.clusters.base import Cluster, Machines, NodeCheck, NodeInfo, Provisioner
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError

#: The problem of a cluster whose machines this package can create but has not created yet.
ABSENT = "The machines have not been created yet."


@dataclass(frozen=True, slots=True)
class ClusterStatus(ClusterConfig):
    """A cluster with its current status; ``problem`` is the reason why it cannot be used now ("": it can be used).

    ``code`` is the stable identifier of the problem. ``checked`` is False until the cluster has answered once.
    """

    title: str = ""
    detail: str = ""
    problem: str = ""
    remedy: str = ""
    code: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    is_remote: bool = False
    checked: bool = True
    #: The machines as a whole, if this package creates and deletes them.
    machines: Machines | None = None
    can_create: bool = False
    #: The number of nodes that cost money now; their total cost per hour, None if unknown.
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


def plugin(target: ClusterConfig) -> tuple[Cluster, Any]:
    """Return a cluster's plug-in and options. Raises InvalidSpec, PluginUnavailable."""
    cluster: Cluster = registry.get("clusters", target.kind)
    return cluster, registry.check_options("clusters", target.kind, dict(target.options))


def probe(target: ClusterConfig) -> ClusterStatus:
    """Return the current status of a cluster; an error is its ``problem``. This may take seconds."""
    try:
        cluster, options = plugin(target)
        problem, remedy = cluster.unavailable(options), ""
        machines = cluster.machines(options) if isinstance(cluster, Provisioner) and not problem else None
        if machines is not None and not machines.exists:
            problem, remedy = ABSENT, f"Create them: distdl clusters compute create {target.name}"
        return ClusterStatus.of(
            target,
            title=cluster.title or cluster.name,
            detail="" if problem else (machines.detail if machines else "") or cluster.detail(options),
            problem=problem,
            remedy=remedy,
            nodes=() if problem else tuple(cluster.nodes(options)),
            is_remote=cluster.is_remote,
            machines=machines,
            can_create=isinstance(cluster, Provisioner),
        )
    except Exception as error:  # noqa: BLE001 - a failing plug-in must not hide the other clusters
        failure = _plugin_error(error)
        return ClusterStatus.of(target, problem=failure.message, remedy=failure.hint, code=failure.code)


def _plugin_error(error: Exception) -> DistDLError:
    if isinstance(error, DistDLError):
        return error
    return DistDLError(
        f"The plug-in failed: {type(error).__name__}: {error}",
        code="cluster-plugin-failed",
        hint="Report the error to the authors of the plug-in.",
    )


def silent(target: ClusterConfig, seconds: float, last: ClusterStatus | None = None) -> ClusterStatus:
    """Return the status of a cluster that has not responded for ``seconds``: its last known nodes, as unknown."""
    known = last or ClusterStatus.of(target, checked=False)
    nodes = tuple(dataclasses.replace(node, state="unknown", detail="", load=None, ranks=None) for node in known.nodes)
    return dataclasses.replace(known, problem=f"No response for {seconds:g} s.", code="cluster-silent", nodes=nodes)


def probe_all(targets: Sequence[ClusterConfig], seconds: float) -> list[ClusterStatus]:
    """Return the current status of several clusters within ``seconds`` seconds; all are probed in parallel."""
    probes = _Probes[ClusterStatus]()
    running = [probes.get(str(index), functools.partial(probe, target)) for index, target in enumerate(targets)]
    concurrent.futures.wait([probe.answer for probe in running], seconds)
    return [probe.known or silent(target, seconds) for probe, target in zip(running, targets, strict=True)]


def check(target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None = None) -> list[NodeCheck]:
    """Check every node for problems that prevent jobs; this takes up to 30 seconds.

    ``needs`` holds the ``modules`` and ``programs`` of a backend. An error is a failed check of the whole cluster. For
    clusters that define no checks, check only whether the nodes respond.
    """
    try:
        cluster, options = plugin(target)
        if reason := cluster.unavailable(options):
            return [NodeCheck("", "Cluster", "error", reason, "", "cluster-unavailable")]
        if rows := cluster.checks(options, **(needs or {})):
            return rows
        if down_names := ", ".join(node.name for node in cluster.nodes(options) if node.state == "down"):
            text = f"{down_names} cannot be used."
            return [NodeCheck("", "Reachable", "error", text, "Check these machines.", "cluster-reachable")]
        return [NodeCheck("", "Reachable", "ok", "All nodes respond.")]
    except Exception as error:  # noqa: BLE001 - as in ``probe``
        failure = _plugin_error(error)
        return [NodeCheck("", "Cluster", "error", failure.message, failure.hint, failure.code)]


def needs(backend_label: str) -> dict[str, Sequence[str]]:
    """Return the ``modules`` and ``programs`` that a backend needs on every node. Raises InvalidSpec."""
    backend, options = registry.backend(backend_label, {})
    return {"modules": backend.modules(options), "programs": backend.programs(options)}


# the newest status and checks, for pages and forms ------------------------------------------------
# At most one probe per cluster runs at a time, in its own thread, so a cluster that does not respond delays neither
# requests nor other clusters. Until a probe has ended, the previous answer is used.


T = TypeVar("T")
Needs = Mapping[str, Sequence[str]]

#: Seconds that a request waits for a cluster: if its status is unknown, and if an earlier status is known.
FIRST, AGAIN = 1.5, 0.3
#: Seconds after which a form probes a cluster again: for the nodes, and for checks without errors.
NODES_FRESH, CHECKS_FRESH = 15.0, 300.0


@dataclass(slots=True)
class _Probe(Generic[T]):
    """A running or completed probe; ``previous`` is the answer of the previous probe, None for the first."""

    started_at: float
    answer: Future[T]
    previous: T | None

    @property
    def known(self) -> T | None:
        """The latest answer."""
        return self.answer.result() if self.answer.done() else self.previous


class _Probes(Generic[T]):
    """The latest probes by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: dict[str, _Probe[T]] = {}

    def get(self, key: str, function: Callable[[], T], max_age: float = 0.0) -> _Probe[T]:
        """Return the running probe, or one that started at most ``max_age`` seconds ago, else start a new one."""
        with self._lock:
            now = time.monotonic()
            probe = self._probes.get(key)
            if probe is None or (probe.answer.done() and now - probe.started_at >= max_age):
                probe = self._probes[key] = _Probe(now, Future(), None if probe is None else probe.known)
                answer = probe.answer
                threading.Thread(target=lambda: answer.set_result(function()), name="distdl-probe", daemon=True).start()
            return probe


def _make_key(target: ClusterConfig, *parts: object) -> str:
    return json.dumps([target.name, target.kind, dict(target.options), *parts], sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """The known part of a cluster's status and checks (None: unknown yet); ``pending`` is true while probes run."""

    status: ClusterStatus | None
    checks: tuple[NodeCheck, ...] | None
    pending: bool


class StatusCache:
    """The newest status and checks of each cluster. A cluster is silent after ``seconds`` without a response."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._timeout = seconds
        self._statuses: _Probes[ClusterStatus] = _Probes()
        self._checks: _Probes[list[NodeCheck]] = _Probes()

    async def now(self, target: ClusterConfig) -> ClusterStatus:
        """Return the current status of a cluster, or the last known one if the cluster responds slowly."""
        probe = self._status(target)
        timeout = min(self._timeout, FIRST if probe.known is None else AGAIN)
        await asyncio.wait([asyncio.wrap_future(probe.answer)], timeout=timeout)
        if not probe.answer.done() and time.monotonic() - probe.started_at >= self._timeout:
            return silent(target, self._timeout, probe.known)
        return probe.known or ClusterStatus.of(target, checked=False)

    async def checked(self, target: ClusterConfig, needs: Needs | None) -> list[NodeCheck]:
        """Return new checks of a cluster; requests during a check share its results."""
        return await asyncio.shield(asyncio.wrap_future(self._check(target, needs).answer))

    def cached(self, target: ClusterConfig, needs: Needs, timeout: float = 1.0, *, fresh: bool = False) -> CachedStatus:
        """Return the known status of a cluster. Wait at most ``timeout`` seconds, and only if nothing is known.

        ``needs`` holds the ``modules`` and ``programs`` of the backend. With ``fresh``, probe the cluster again.
        """
        probe = self._status(target, 0.0 if fresh else NODES_FRESH)
        if probe.known is None:
            concurrent.futures.wait([probe.answer], timeout)
        known = probe.known
        if known is None or known.problem:
            return CachedStatus(known, None if known is None else (), pending=not probe.answer.done())
        checks = self._check(target, needs, CHECKS_FRESH)
        is_down = any(node.state == "down" for node in known.nodes)
        if fresh or is_down or any(check.level == "error" for check in checks.known or ()):
            checks = self._check(target, needs, 0.0 if fresh else NODES_FRESH)
        pending = not (probe.answer.done() and checks.answer.done())
        return CachedStatus(probe.known, None if checks.known is None else tuple(checks.known), pending)

    def _status(self, target: ClusterConfig, max_age: float = 0.0) -> _Probe[ClusterStatus]:
        return self._statuses.get(_make_key(target), lambda: probe(target), max_age)

    def _check(self, target: ClusterConfig, needs: Needs | None, max_age: float = 0.0) -> _Probe[list[NodeCheck]]:
        return self._checks.get(_make_key(target, needs), lambda: check(target, needs), max_age)


#: The cache of the forms in this process.
FORMS = StatusCache()

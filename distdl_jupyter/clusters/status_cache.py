"""The newest status and checks of each cluster, for pages and forms.

One probe of each runs at a time, in a thread of its own: a cluster that does not respond delays neither requests nor
other clusters. Until a probe has ended, the last known answer is used.
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
from typing import Generic, TypeVar

from distdl_jupyter.clusters import status
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.status import ClusterStatus
from distdl_jupyter.clusters.tables import has_errors

T = TypeVar("T")
Needs = Mapping[str, Sequence[str]]

#: Seconds that a request waits for a cluster that is not known yet, and for one whose last status is known.
FIRST, AGAIN = 1.5, 0.3
#: Seconds for which nodes, and checks that passed, are recent enough for a form.
NODES_FRESH, CHECKS_FRESH = 15.0, 300.0
#: Seconds after which an unused result is dropped.
_KEPT = 600.0


@dataclass(slots=True)
class _Probe(Generic[T]):
    """One probe that runs or has ended; ``last`` is the answer of the probe before it."""

    begun: float
    answer: Future[T]
    last: T | None

    @property
    def known(self) -> T | None:
        """The newest answer."""
        return self.answer.result() if self.answer.done() else self.last


class _Probes(Generic[T]):
    """The newest probe by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: dict[str, _Probe[T]] = {}

    def get(self, key: str, function: Callable[[], T], max_age: float = 0.0) -> _Probe[T]:
        """Return the probe that runs, or that began at most ``max_age`` seconds ago, else begin a new one."""
        with self._lock:
            now = time.monotonic()
            probe = self._probes.get(key)
            if probe is None or (probe.answer.done() and now - probe.begun >= max_age):
                old = [
                    name
                    for name, known_probe in self._probes.items()
                    if known_probe.answer.done() and now - known_probe.begun > _KEPT
                ]
                for name in old:
                    del self._probes[name]
                probe = self._probes[key] = _Probe(now, Future(), None if probe is None else probe.known)
                run = threading.Thread(target=_run, args=(function, probe.answer), name="distdl-probe", daemon=True)
                run.start()
            return probe


def _run(function: Callable[[], T], answer: Future[T]) -> None:
    answer.set_result(function())


def _key(target: ClusterConfig, *more: object) -> str:
    return json.dumps([target.name, target.kind, dict(target.options), *more], sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """The known part of a cluster's status and checks (None: unknown yet); ``looking`` while probes run."""

    status: ClusterStatus | None
    checks: tuple[Check, ...] | None
    looking: bool


class StatusCache:
    """The newest status and checks of each cluster. A cluster is silent after ``seconds`` without a response."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._statuses: _Probes[ClusterStatus] = _Probes()
        self._checks: _Probes[list[Check]] = _Probes()

    async def now(self, target: ClusterConfig) -> ClusterStatus:
        """Return the present status of a cluster, or the last known one if the cluster responds slowly."""
        probe = self._status(target)
        timeout = min(self._seconds, FIRST if probe.known is None else AGAIN)
        await asyncio.wait([asyncio.wrap_future(probe.answer)], timeout=timeout)
        if not probe.answer.done() and time.monotonic() - probe.begun >= self._seconds:
            return status.silent(target, self._seconds, probe.known)
        return probe.known or status.unknown(target)

    async def checked(self, target: ClusterConfig, needs: Needs | None) -> list[Check]:
        """Return new checks of a cluster; requests during a check share its results."""
        return await asyncio.shield(asyncio.wrap_future(self._check(target, needs).answer))

    def cached(self, target: ClusterConfig, needs: Needs, timeout: float = 1.0, *, fresh: bool = False) -> CachedStatus:
        """Return what is known of a cluster. Wait at most ``timeout`` seconds, and only if nothing is known.

        ``needs`` holds the ``modules`` and ``programs`` of the backend. With ``fresh``, probe the cluster again.
        """
        probe = self._status(target, 0.0 if fresh else NODES_FRESH)
        if probe.known is None:
            concurrent.futures.wait([probe.answer], timeout)
        known = probe.known
        if known is None or known.problem:
            return CachedStatus(known, None if known is None else (), looking=not probe.answer.done())
        checks = self._check(target, needs, CHECKS_FRESH)
        is_down = any(node.state == "down" for node in known.nodes)
        if fresh or is_down or has_errors(checks.known or ()):
            checks = self._check(target, needs, 0.0 if fresh else NODES_FRESH)
        if checks.answer.done() and probe.begun < checks.begun and any(node.state != "up" for node in known.nodes):
            probe = self._status(target)  # a slow node may have responded by now
        looking = not (probe.answer.done() and checks.answer.done())
        return CachedStatus(probe.known, None if checks.known is None else tuple(checks.known), looking)

    def _status(self, target: ClusterConfig, max_age: float = 0.0) -> _Probe[ClusterStatus]:
        return self._statuses.get(_key(target), lambda: _rounded(status.look(target)), max_age)

    def _check(self, target: ClusterConfig, needs: Needs | None, max_age: float = 0.0) -> _Probe[list[Check]]:
        return self._checks.get(_key(target, needs), lambda: status.check(target, needs), max_age)


def _rounded(known: ClusterStatus) -> ClusterStatus:
    """Return the status with loads that do not change with every probe."""
    nodes = (node if node.load is None else dataclasses.replace(node, load=round(node.load, 1)) for node in known.nodes)
    return dataclasses.replace(known, nodes=tuple(nodes))


#: The cache of the forms in this process.
FORMS = StatusCache()

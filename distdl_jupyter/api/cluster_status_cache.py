"""Looking at clusters for pages: one look at a time for each, in a thread that nobody waits for long.

A cluster that takes its time is shown as it was known last; one that has said nothing for too long is shown as silent.
The threads that answer requests are never given to a silent cluster.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from distdl_jupyter.cluster_handles import status
from distdl_jupyter.cluster_handles.status import ClusterStatus
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.cluster_configs import ClusterConfig

#: Seconds that a request waits for a cluster that is not known yet, and for one of which the last state is.
FIRST, AGAIN = 1.5, 0.3


@dataclass(slots=True)
class _Look:
    """A look that goes on, or has come to its end."""

    begun: float
    answer: Future[ClusterStatus]


class ClusterStatusCache:
    """The newest look at each cluster. Used in the event loop only."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._looks: dict[str, _Look] = {}
        self._known: dict[str, ClusterStatus] = {}
        self._checks: dict[str, Future[list[Check]]] = {}

    async def now(self, target: ClusterConfig) -> ClusterStatus:
        """Return a cluster as it is now, or as it was known last."""
        key = _key(target)
        look = self._begun(key, target)
        timeout = min(self._seconds, AGAIN if key in self._known else FIRST)
        await asyncio.wait([asyncio.wrap_future(look.answer)], timeout=timeout)
        if look.answer.done():
            self._known[key] = look.answer.result()
            return self._known[key]
        last, since = self._known.get(key), time.monotonic() - look.begun
        if since >= self._seconds:
            return status.silent(target, self._seconds, last)
        return last or ClusterStatus(target, target.kind, looked=False)

    async def checked(self, target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None) -> list[Check]:
        """Return fresh checks of a cluster; who asks while they go on gets the same."""
        key = _key(target, needs)
        running = self._checks.get(key)
        if running is None or running.done():
            self._checks = {one: future for one, future in self._checks.items() if not future.done()}
            running = self._checks[key] = Future()
            threading.Thread(target=_check, args=(target, needs, running), name="distdl-check", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(running))

    def _begun(self, key: str, target: ClusterConfig) -> _Look:
        """Return the look that goes on, else a new one."""
        look = self._looks.get(key)
        if look is None or look.answer.done():
            self._forget()
            look = self._looks[key] = _Look(time.monotonic(), Future())
            threading.Thread(target=_look, args=(target, look.answer), name="distdl-look", daemon=True).start()
        return look

    def _forget(self) -> None:
        """Drop looks of long ago, at clusters that have been removed or changed."""
        old = time.monotonic() - 600
        for key in [key for key, look in self._looks.items() if look.answer.done() and look.begun < old]:
            del self._looks[key]
            self._known.pop(key, None)


def _key(target: ClusterConfig, *more: object) -> str:
    return json.dumps([target.name, target.kind, dict(target.options), *more], sort_keys=True, default=str)


def _check(target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None, answer: Future[list[Check]]) -> None:
    answer.set_result(status.check(target, needs))


def _look(target: ClusterConfig, answer: Future[ClusterStatus]) -> None:
    found = status.look(target)
    nodes = tuple(dataclasses.replace(one, load=_tenths(one.load)) for one in found.nodes)
    answer.set_result(dataclasses.replace(found, nodes=nodes))


def _tenths(load: float | None) -> float | None:
    """Return a load that does not change with every look."""
    return None if load is None else round(load, 1)

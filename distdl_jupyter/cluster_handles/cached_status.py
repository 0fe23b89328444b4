"""What a form shows of a cluster while somebody fills it in: never waits long, and knows more the next time.

A look goes on in a thread of this process, one for each cluster and backend: first the nodes, then the checks. What is
known stays for a while, so that typing asks nobody anything.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdl_jupyter.cluster_handles import status
from distdl_jupyter.cluster_handles.status import ClusterStatus
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.views.clusters import has_errors

#: Seconds for which nodes, and checks without a red row, are good enough for a form.
NODES_FRESH, CHECKS_FRESH = 15.0, 300.0


@dataclass(slots=True)
class CachedStatus:
    """What is known so far: nothing (None) until the cluster has answered; ``looking`` while more may come."""

    status: ClusterStatus | None = None
    checks: tuple[Check, ...] | None = None
    looking: bool = True
    begun: float = field(default_factory=time.monotonic)
    checked: float = float("-inf")
    #: Somebody asks for new checks while a look goes on.
    again: bool = False
    seen: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_known: dict[str, CachedStatus] = {}


def cached_status(
    target: ClusterConfig, needs: Mapping[str, Sequence[str]], *, timeout: float = 1.0, fresh: bool = False
) -> CachedStatus:
    """Return what is known of a cluster; wait ``timeout`` seconds at most, and only when that is nothing.

    ``needs`` holds the ``modules`` and ``programs`` of the backend; ``fresh`` begins a new look.
    """
    key = json.dumps([target.name, target.kind, dict(target.options), dict(needs)], sort_keys=True, default=str)
    with _lock:
        found = _known.get(key)
        if found is not None and found.looking:
            found.again = found.again or fresh
        if found is None or (not found.looking and (fresh or time.monotonic() - found.begun > NODES_FRESH)):
            found = _known[key] = _begun(target, needs, found, fresh=fresh)
    if found.status is None:
        found.seen.wait(timeout)
    return found


def _begun(
    target: ClusterConfig, needs: Mapping[str, Sequence[str]], last: CachedStatus | None, *, fresh: bool
) -> CachedStatus:
    one = CachedStatus()
    if last is not None:
        one.status, one.checks = last.status, last.checks
        one.checked = float("-inf") if fresh else last.checked
    threading.Thread(target=_look, args=(one, target, needs), name="distdl-status", daemon=True).start()
    return one


def _look(one: CachedStatus, target: ClusterConfig, needs: Mapping[str, Sequence[str]]) -> None:
    try:
        _look_once(one, target, needs)
        while _wanted_again(one):
            _look_once(one, target, needs)
    finally:
        one.looking = False
        one.seen.set()


def _wanted_again(one: CachedStatus) -> bool:
    """Say whether to go on; if not, whoever asks from now on begins a look of his own."""
    with _lock:
        wanted, one.again = one.again, False
        one.looking = wanted
        if wanted:
            one.checked = float("-inf")
        return wanted


def _look_once(one: CachedStatus, target: ClusterConfig, needs: Mapping[str, Sequence[str]]) -> None:
    one.status = status.look(target)
    one.seen.set()
    if one.status.problem:
        one.checks, one.checked = (), float("-inf")
    elif _is_old(one, one.status):
        one.checks, one.checked = tuple(status.check(target, needs)), time.monotonic()
    if any(node.state != "up" for node in one.status.nodes):
        one.status = status.look(target)  # who was slow to answer has answered by now


def _is_old(one: CachedStatus, now: ClusterStatus) -> bool:
    """Say whether the checks are long ago, or the nodes belie them."""
    red = has_errors(one.checks or ())
    return time.monotonic() - one.checked > CHECKS_FRESH or red or any(node.state == "down" for node in now.nodes)

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

from distdl_jupyter.clusters.base import Check
from distdl_jupyter.places import standing
from distdl_jupyter.places.standing import Standing
from distdl_jupyter.targets import Target

#: Seconds for which nodes and checks are good enough for a form.
FRESH = 30.0


@dataclass(slots=True)
class Glimpse:
    """What is known so far: nothing (None) until the cluster has answered; ``looking`` while more may come."""

    standing: Standing | None = None
    checks: tuple[Check, ...] | None = None
    looking: bool = True
    begun: float = field(default_factory=time.monotonic)
    seen: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_known: dict[str, Glimpse] = {}


def glimpse(
    target: Target, needs: Mapping[str, Sequence[str]], *, patience: float = 1.0, fresh: bool = False
) -> Glimpse:
    """Return what is known of a cluster; wait ``patience`` seconds at most, and only when that is nothing.

    ``needs`` holds the ``modules`` and ``programs`` of the backend; ``fresh`` begins a new look.
    """
    key = json.dumps([target.name, target.kind, dict(target.options), dict(needs)], sort_keys=True, default=str)
    with _lock:
        found = _known.get(key)
        if found is None or (not found.looking and (fresh or time.monotonic() - found.begun > FRESH)):
            found = _known[key] = _begun(target, needs, found)
    if found.standing is None:
        found.seen.wait(patience)
    return found


def _begun(target: Target, needs: Mapping[str, Sequence[str]], last: Glimpse | None) -> Glimpse:
    one = Glimpse(*((last.standing, last.checks) if last else ()))
    threading.Thread(target=_look, args=(one, target, needs), name="distdl-glimpse", daemon=True).start()
    return one


def _look(one: Glimpse, target: Target, needs: Mapping[str, Sequence[str]]) -> None:
    try:
        one.standing = standing.look(target)
        one.seen.set()
        one.checks = tuple(standing.check(target, needs)) if not one.standing.problem else ()
        if any(node.state != "up" for node in one.standing.nodes):
            one.standing = standing.look(target)  # who was slow to answer has answered by now
    finally:
        one.looking = False
        one.seen.set()

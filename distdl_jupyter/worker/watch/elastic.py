"""What a rank of an elastic Horovod job does differently: it asks for its numbers before it meets the others.

Horovod asks again by itself each time that ``hvd.elastic.run`` lets it meet anew, but the first time it takes what its
environment says. A process that joins later cannot know that beforehand: while it starts, others may come and go.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: In the order of the answer (horovod/runner/common/util/hosts.py, SlotInfo.to_response_string, release 0.28.1).
_NUMBERS = (
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)  # fmt: skip


def asking_first(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``hvd.init`` that waits for its place in the world the first time."""
    asked = False

    @functools.wraps(initialise)
    def placed(*args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        if not asked:
            _take_place()
            asked = True
        return initialise(*args, **kwargs)

    return placed


def _take_place() -> None:
    """Ask whoever leads the job, as long as it takes, and set the variables that Horovod reads. Raises OSError."""
    import urllib.request

    own = os.environ
    address, port = own["HOROVOD_GLOO_RENDEZVOUS_ADDR"], own["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    place = f"{own['HOROVOD_HOSTNAME']}:{own['HOROVOD_LOCAL_RANK']}"
    # Never through a proxy: it is this job's own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}:{port}/rank_and_size/{place}") as answer:
        numbers = answer.read().decode().split(",")
    os.environ.update(zip(_NUMBERS, numbers, strict=True))


def listen_here_only(network: ModuleType) -> None:
    """Let what Horovod opens to hear of new hosts listen on the job's network, where it takes every interface."""
    address = _own_address(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition(":")[0])
    own = network.__dict__
    find = own["find_port"]
    own["find_port"] = lambda factory: find(lambda place: factory((address, place[1])))


def _own_address(leader: str) -> str:
    """Return the address of this host on the way to the one that leads the job; nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((leader, 9))
        return str(way.getsockname()[0])

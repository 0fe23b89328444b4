"""The orderly end of a rank that succeeded: it leaves Horovod and torch's process group as the code would have to.

A rank that closes its connections while a peer is still opening them makes that peer fail, and rank 0 usually keeps
the store through which torch's ranks find each other. So torch's ranks wait for each other and rank 0 goes last.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from distdl_jupyter.worker.watch.hooks import guarded

#: Seconds to wait for the other ranks' ends. Connections that were opened this long ago are all up.
PATIENCE = 15.0
#: Seconds that rank 0 gives the others to see that all have arrived.
LAST_PATIENCE = 2.0


def leave() -> None:
    """Shut down what the code has initialised and not shut down itself; nothing that was not imported is touched."""
    for name in ("horovod.torch", "horovod.tensorflow", "horovod.mxnet"):
        horovod = sys.modules.get(name)
        if horovod is not None and hasattr(horovod, "is_initialized"):
            guarded("at the end", _leave_horovod, horovod)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available():
        guarded("at the end", _leave_torch, distributed)


def _leave_horovod(horovod: Any) -> None:
    if horovod.is_initialized():
        horovod.shutdown()


def _leave_torch(distributed: Any) -> None:
    if not distributed.is_initialized():
        return
    # A store that is gone means that its rank has left already.
    with contextlib.suppress(Exception):
        _await_peers(distributed.distributed_c10d, distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()


def _await_peers(c10d: Any, rank: int, size: int) -> None:
    store = c10d._get_default_store()  # noqa: SLF001  torch offers no public way to the group's own store
    store.add("distdl/arrived", 1)
    _until(store, "distdl/arrived", size, PATIENCE)
    if rank == 0:
        _until(store, "distdl/gone", size - 1, LAST_PATIENCE)
    else:
        store.add("distdl/gone", 1)


def _until(store: Any, counter: str, wanted: int, patience: float) -> None:
    until = time.monotonic() + patience
    while store.add(counter, 0) < wanted and time.monotonic() < until:
        time.sleep(0.01)

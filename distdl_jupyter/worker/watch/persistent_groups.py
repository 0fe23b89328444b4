"""Lets code that was written for a job run in ranks that have met before: they meet once and stay together.

A job's code begins with ``init_process_group`` and may end with ``destroy_process_group`` or ``hvd.shutdown``. While
such code runs the first is done once, and the group outlives it: to meet again while another rank still leaves the
last meeting can fail, and takes time. What cells do themselves stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch.hooks import install

_keeping = False


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within this block the ranks' meeting is made at most once and not ended."""
    global _keeping
    _keeping = True
    try:
        yield
    finally:
        _keeping = False


def watch() -> None:
    """Ask to be told of the modules with which ranks meet; to be called once, before code of the user runs."""
    finder = install()
    # Not the module in which torch's functions are made: a module has one listener, and that one has its own.
    finder.after("torch.distributed", _of_torch)
    for name in ("horovod.torch", "horovod.tensorflow"):
        finder.after(name, _of_horovod)


def _of_torch(distributed: ModuleType) -> None:
    initialise = getattr(distributed, "init_process_group", None)
    destroy = getattr(distributed, "destroy_process_group", None)
    if initialise is None or destroy is None:  # torch was built without it
        return
    for module in (distributed, sys.modules.get("torch.distributed.distributed_c10d")):
        if module is not None:
            module.__dict__["init_process_group"] = _once(distributed, initialise)
            module.__dict__["destroy_process_group"] = _not_all(destroy)


def _of_horovod(horovod: ModuleType) -> None:
    horovod.__dict__["shutdown"] = _unless_kept(horovod.shutdown)


def _once(distributed: Any, initialise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(initialise)
    def met(*args: Any, **kwargs: Any) -> Any:
        return None if _keeping and distributed.is_initialized() else initialise(*args, **kwargs)

    return met


def _not_all(destroy: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(destroy)
    def stay(group: Any = None) -> None:
        if group is not None or not _keeping:
            destroy(group)

    return stay


def _unless_kept(shutdown: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shutdown)
    def stay() -> None:
        if not _keeping:
            shutdown()

    return stay

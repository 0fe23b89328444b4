"""Lets code that was written for a job run in ranks that have met before: they meet once and stay together.

A job's code begins with ``init_process_group`` and may end with ``destroy_process_group`` or ``hvd.shutdown``. Here the
first is done once, and the group outlives the code, so that the next one need not meet again.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within this block the ranks' meeting is made at most once and not ended."""
    undo: list[Callable[[], None]] = []
    for name in ("torch.distributed.distributed_c10d", "torch.distributed"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "init_process_group"):
            undo.append(_replaced(module, "init_process_group", _once(module, module.init_process_group)))
            undo.append(_replaced(module, "destroy_process_group", _not_all(module.destroy_process_group)))
    for name in ("horovod.torch", "horovod.tensorflow"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "shutdown"):
            undo.append(_replaced(module, "shutdown", lambda: None))
    try:
        yield
    finally:
        for step in undo:
            step()


def _replaced(module: ModuleType, name: str, value: Any) -> Callable[[], None]:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


def _once(module: Any, initialise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(initialise)
    def met(*args: Any, **kwargs: Any) -> Any:
        return None if module.is_initialized() else initialise(*args, **kwargs)

    return met


def _not_all(destroy: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(destroy)
    def stay(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    return stay

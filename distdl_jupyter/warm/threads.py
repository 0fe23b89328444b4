"""How many threads numerical libraries use in a process that was forked from one in which they may use one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_libraries: Any = None


def look() -> None:
    """Find the loaded numerical libraries once, before forking: it takes some milliseconds."""
    global _libraries
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return
    _libraries = ThreadpoolController().select(user_api="blas")


def wanted(environment: Mapping[str, str]) -> int | None:
    """Return how many threads a process of this environment uses; None when that cannot be set after a fork."""
    count = environment.get("OMP_NUM_THREADS", "")
    if not count.isdigit() or int(count) < 1 or "MKL_NUM_THREADS" in environment:
        return None
    others = int(count) > 1 or "OPENBLAS_NUM_THREADS" in environment
    if others and _libraries is None and {"numpy", "scipy"} & set(sys.modules):
        return None
    return int(count)


def allow(environment: Mapping[str, str]) -> None:
    """Set what ``environment`` says, as far as it is not one thread."""
    count = wanted(environment) or 1
    blas = environment.get("OPENBLAS_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and count > 1:
        torch.set_num_threads(count)
    number = int(blas) if blas.isdigit() else count
    if _libraries is not None and number > 1:
        _libraries.limit(limits=number)

"""How many threads numerical libraries use in a process that was forked from one in which they may use one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

from distdl_jupyter.worker.watch import after_fork

#: Packages that bring a library of their own for linear algebra.
_BRING_BLAS = ("numpy", "scipy")


def wanted(environment: Mapping[str, str]) -> int | None:
    """Return how many threads a process of this environment uses; None when that cannot be set after a fork.

    0 where no numerical library is loaded: one that is loaded later reads the environment itself.
    """
    if not after_fork.has_threads() and not _has_blas():
        return 0
    count = environment.get("OMP_NUM_THREADS", "")
    if not count.isdigit() or int(count) < 1 or "MKL_NUM_THREADS" in environment:
        return None
    if _of_blas(environment) > 1 and importlib.util.find_spec("threadpoolctl") is None:
        return None
    return int(count)


def _of_blas(environment: Mapping[str, str]) -> int:
    """Return the threads of linear algebra, as far as a library for it is loaded; 1 is what it has."""
    count = environment.get("OPENBLAS_NUM_THREADS", environment.get("OMP_NUM_THREADS", ""))
    return int(count) if count.isdigit() and _has_blas() else 1


def _has_blas() -> bool:
    return any(name in sys.modules for name in _BRING_BLAS)


def allow(environment: Mapping[str, str]) -> None:
    """Set what ``environment`` says, as far as it is not one thread."""
    count = wanted(environment) or 1
    if count > 1:
        after_fork.set_threads(count)
    if (number := _of_blas(environment)) > 1:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

        ThreadpoolController().select(user_api="blas").limit(limits=number)

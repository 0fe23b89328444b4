"""``horovod.spark.run`` in the notebook's Spark session.

Use ``import distdl_jupyter.compat.horovod.spark`` instead of ``import horovod.spark``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter import compat
from distdl_jupyter.compat.horovod import refuse


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int,
    use_mpi: bool | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> list[Any]:
    """Run ``fn(*args, **kwargs)`` in ``num_proc`` Spark tasks and return the values of all ranks.

    Raises InvalidSpec for unsupported arguments that would change the run, JobFailed, and the errors of ``submit``.
    """
    refuse(more, "horovod.spark.run")
    options = {"environment_variables": dict(env or {}), **compat.build_rank_options(num_proc, is_local=False)}
    backend = "horovod-mpi" if use_mpi else "horovod-gloo"
    return compat.run(fn, args, kwargs or {}, distributed_backend=backend, **options).results()

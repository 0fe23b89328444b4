"""``horovod.spark.run``: the same call, in the notebook's session of Spark.

``import distdl_jupyter.compat.horovod.spark`` in place of ``import horovod.spark``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import InvalidSpec


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},
    num_proc: int | None = None,
    start_timeout: int | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Run ``fn(*args, **kwargs)`` on ``num_proc`` tasks of Spark (all of its cores by default); return all values.

    What a job does by itself here is taken and has no meaning: ``start_timeout``, ``stdout``, ``stderr``, ``verbose``,
    ``nics``. Raises InvalidSpec for ``extra_mpi_args`` and ``executable``, JobFailed, and what ``submit`` raises.
    """
    for name, value in (("extra_mpi_args", extra_mpi_args), ("executable", executable)):
        if value is not None:
            raise InvalidSpec(
                f"The argument {name} of horovod.spark.run is not supported.",
                code="horovod-spark-option-unsupported",
                field=name,
                hint="The job sets the arguments of Open MPI. Set the cluster option python to the Python of the "
                "executors.",
            )
    options: dict[str, Any] = {"distributed_backend": "horovod-mpi" if use_mpi else "horovod-gloo"}
    if env:
        options["environment_variables"] = dict(env)
    options["node_count"] = _all_cores() if num_proc is None else num_proc
    return blocking.run(fn, args, kwargs, compute_target="spark", **options).results()


def _all_cores() -> int:
    """Return how many tasks the session of this process runs at a time. Raises InvalidSpec without one."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - as Horovod asks
    if context is None:
        raise InvalidSpec(
            "This process has no Spark session.",
            code="horovod-spark-no-session",
            field="num_proc",
            hint="Create one with spark = SparkSession.builder.getOrCreate(), or set num_proc.",
        )
    return int(context.defaultParallelism)

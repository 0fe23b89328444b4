"""Drop-in replacements for the APIs and job files of Azure's SDK v1, Batch AI, Databricks, PySpark and Horovod.

The functions of this module start a job, show it in a notebook, and return when it has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job


def run(target: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any) -> Job:
    """Run a function, or a script with its arguments, on every rank and return the job when it has ended.

    An interrupt cancels the job. Raises JobFailed, TypeError for keyword arguments of a script, and the errors of
    ``submit``.
    """
    from distdl_jupyter.core.errors import explain
    from distdl_jupyter.core.humanize import short_id
    from distdl_jupyter.jobs import client  # lazy: ranks may import this module, but do not need it

    if callable(target):
        job = client.submit(target, args, kwargs, **options)
    elif kwargs:
        raise TypeError("A script accepts only positional arguments.")
    else:
        job = client.submit(entry_script=str(target), script_params=[*map(str, args)], **options)  # type: ignore[arg-type]
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from distdl_jupyter.jobs import output

        output.show(job)
    try:
        job.wait()
    except KeyboardInterrupt as interrupt:
        job.cancel()
        explain(interrupt, f"Interrupted; job {job.name} ({short_id(job.id)}) was canceled.")
        raise
    job.results()  # raises JobFailed
    return job


def build_rank_options(count: int, *, is_local: bool) -> dict[str, Any]:
    """Return the options of ranks that run as local processes, or as tasks of the notebook's Spark session."""
    if is_local:
        return {"compute_target": "local", "process_count_per_node": count}
    return {"compute_target": "spark", "node_count": count}

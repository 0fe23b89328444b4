"""Run notebook cells, functions and scripts as distributed training jobs.

Public names are imported on first use, so that importing the package is fast and does not import any framework.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter._version import __version__

if sys.platform == "win32":
    raise ImportError("distdl_jupyter needs Linux or macOS. On Windows, use WSL (Windows Subsystem for Linux).")

if TYPE_CHECKING:
    from distdl_jupyter.azure.vm_sizes import vm_sizes
    from distdl_jupyter.clusters.handle import add_cluster, clusters
    from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobFailed, JobNotFound
    from distdl_jupyter.core.space import choice, integers, loguniform, uniform
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.jobs.client import Job, attach, distributed, jobs, submit
    from distdl_jupyter.jobs.job_queue import queue
    from distdl_jupyter.jobs.retention import prune
    from distdl_jupyter.studies.correctness import check
    from distdl_jupyter.studies.scaling import scale, scaling
    from distdl_jupyter.studies.sweeps import sweep
    from distdl_jupyter.tracking.messages import notifications
    from distdl_jupyter.widgets.azure import azure_sign_in
    from distdl_jupyter.widgets.job import panel
    from distdl_jupyter.widgets.launch import launcher
    from distdl_jupyter.worker.data import checkpoint_dir, data_path, shard, should_checkpoint
    from distdl_jupyter.worker.report import log, progress

_MODULES = {
    "DistDLError": "core.errors",
    "InvalidSpec": "core.errors",
    "Job": "jobs.client",
    "JobFailed": "core.errors",
    "JobNotFound": "core.errors",
    "JobSpec": "core.spec",
    "add_cluster": "clusters.handle",
    "attach": "jobs.client",
    "azure_sign_in": "widgets.azure",
    "check": "studies.correctness",
    "choice": "core.space",
    "checkpoint_dir": "worker.data",
    "data_path": "worker.data",
    "distributed": "jobs.client",
    "integers": "core.space",
    "launcher": "widgets.launch",
    "log": "worker.report",
    "loguniform": "core.space",
    "notifications": "tracking.messages",
    "panel": "widgets.job",
    "progress": "worker.report",
    "prune": "jobs.retention",
    "queue": "jobs.job_queue",
    "scale": "studies.scaling",
    "scaling": "studies.scaling",
    "shard": "worker.data",
    "should_checkpoint": "worker.data",
    "submit": "jobs.client",
    "sweep": "studies.sweeps",
    "uniform": "core.space",
    "vm_sizes": "azure.vm_sizes",
}

__all__ = [
    "DistDLError",
    "InvalidSpec",
    "Job",
    "JobFailed",
    "JobNotFound",
    "JobSpec",
    "__version__",
    "add_cluster",
    "attach",
    "azure_sign_in",
    "check",
    "checkpoint_dir",
    "choice",
    "clusters",
    "data_path",
    "distributed",
    "integers",
    "jobs",
    "launcher",
    "log",
    "loguniform",
    "notifications",
    "panel",
    "progress",
    "prune",
    "queue",
    "scale",
    "scaling",
    "shard",
    "should_checkpoint",
    "submit",
    "sweep",
    "uniform",
    "vm_sizes",
]


def __getattr__(name: str) -> Any:
    if name in ("clusters", "jobs", "ranks"):  # subpackages, of which the first two are callable
        return importlib.import_module(f"distdl_jupyter.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'distdl_jupyter' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"distdl_jupyter.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics (``%load_ext distdl_jupyter``)."""
    from distdl_jupyter.magic import load

    load(ipython)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the folder of the built JupyterLab extension and the name that JupyterLab uses for it."""
    return [{"src": "labextension", "dest": "distdl-jupyter"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the Jupyter Server extension, which provides the HTTP API for jobs and clusters."""
    module = "distdl_jupyter.server.app"
    return [{"module": module, "app": importlib.import_module(module).DistDLApp}]

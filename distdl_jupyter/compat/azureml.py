"""The API of Azure ML's SDK v1 (azureml-core and azureml-train-core 1.x) for jobs on any cluster.

Use ``from distdl_jupyter.compat.azureml import Experiment, PyTorch, Run`` instead of the imports from ``azureml.core``
and ``azureml.train.dnn``. In the entry script, the same import makes ``Run.get_context().log(...)`` report metrics.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import uuid
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.data import VARIABLE_PREFIX
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker import report

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job

#: Arguments of an estimator that are options of ``submit`` under the same name.
_SAME_OPTIONS = ("vm_size", "pip_packages", "conda_packages", "environment_variables", "max_run_duration_seconds")
#: Azure's names for the states of a job that differ from ours.
_AZURE_STATES = {"canceling": "CancelRequested", "lost": "Failed"}


@dataclasses.dataclass
class MpiConfiguration:
    """MPI as ``distributed_training``, which runs Horovod ranks."""

    process_count_per_node: int = 1
    node_count: int = 1


class PyTorch:
    """An estimator: a script with its cluster, packages and data. ``Experiment.submit`` starts it."""

    def __init__(
        self,
        source_directory: str,
        *,
        compute_target: Any = None,
        entry_script: str,
        script_params: Mapping[str, Any] | None = None,
        node_count: int = 1,
        process_count_per_node: int = 1,
        distributed_backend: str | None = None,
        distributed_training: MpiConfiguration | None = None,
        use_gpu: bool = False,
        **more: Any,
    ) -> None:
        """Create an estimator; warn about each of Azure's arguments that is ignored, such as ``framework_version``.

        ``compute_target`` is the name of a cluster of this package, or an object with that ``name``; the default is
        this machine. ``use_gpu=True`` gives each rank a GPU if there are GPUs; False hides them. Values of
        ``script_params`` may be Azure datastores and data references of a Blob container.

        Raises InvalidSpec.
        """
        if distributed_training is not None:
            distributed_backend = "mpi"
            process_count_per_node = max(process_count_per_node, distributed_training.process_count_per_node)
            node_count = max(node_count, distributed_training.node_count)
        self.source_directory, self.entry_script = source_directory, entry_script
        self._data: dict[str, str] = {}
        self.script_params = {name: self._convert_argument(value) for name, value in (script_params or {}).items()}
        self.options = {
            "compute_target": "local" if compute_target is None else getattr(compute_target, "name", compute_target),
            "node_count": node_count,
            "process_count_per_node": process_count_per_node,
            "distributed_backend": distributed_backend,
            "use_gpu": None if use_gpu else False,
            "data": self._data,
            **{name: more.pop(name) for name in _SAME_OPTIONS if name in more},
        }
        for name in more:
            warnings.warn(f"The argument {name} of PyTorch() is ignored.", stacklevel=2)

    def _convert_argument(self, value: Any) -> Any:
        """Return a command-line argument. For a datastore or data reference, it is the variable of the data's path."""
        datastore = getattr(value, "datastore", value)
        if not hasattr(datastore, "datastore_type"):
            return value
        if datastore.datastore_type != "AzureBlob":
            raise InvalidSpec(
                f"The datastore {datastore.name} is not an Azure Blob container.",
                code="datastore-not-blob",
                field="script_params",
                hint='Pass the path of its files as a string, and use submit(data={"train": "shared:/mnt"}).',
            )
        path = str(getattr(value, "path_on_datastore", None) or "").strip("/.")
        name = re.sub(r"\W", "_", f"{datastore.name}/{path}".strip("/"), flags=re.ASCII)[:40]
        self._data[name] = f"blob://{datastore.account_name}/{datastore.container_name}/{path}".rstrip("/")
        return f"${VARIABLE_PREFIX}{name.upper()}"


@dataclasses.dataclass
class Experiment:
    """A name for runs. ``workspace`` is ignored and may be None, because clusters have their own."""

    workspace: Any
    name: str

    def submit(self, config: PyTorch) -> Run:
        """Start a job with the name of the experiment and return immediately. Raises the errors of ``submit``."""
        from distdl_jupyter import capture
        from distdl_jupyter.jobs import client  # lazy: ranks import this module, but need neither

        code = capture.capture_script(config.entry_script, config.source_directory, config.script_params)
        # With a layout, ranks expand variables in arguments.
        layout: dict[str, Any] = {"variables": []} if config.options["data"] else {}
        code = dataclasses.replace(code, payload_json={**code.payload_json, "layout": layout})
        return Run(self, client.launch(code, name=self.name, **config.options).id)


class Run:
    """A run of an experiment: one job. ``Run.get_context()`` returns the current run in the entry script."""

    def __init__(self, experiment: Experiment | None, run_id: str) -> None:
        """Attach to a job by its id."""
        self.experiment, self.id = experiment, run_id
        self._steps: dict[str, Iterator[int]] = defaultdict(itertools.count)

    @property
    def job(self) -> Job:
        """The handle of the job. Raises JobNotFound."""
        from distdl_jupyter.jobs import client

        return client.attach(self.id)

    def get_status(self) -> str:
        """Return Azure's name for the state of the job; a lost job is reported as failed."""
        state = self.job.state.value
        return _AZURE_STATES.get(state, state.capitalize())

    def wait_for_completion(self, show_output: bool = False, *, raise_on_error: bool = True) -> dict[str, Any]:
        """Wait for the end and return ``runId`` and ``status``; with ``show_output``, print the log of all ranks.

        An interrupt only stops waiting. Raises JobFailed with the error of the first failed rank.
        """
        job = self.job
        if show_output:
            for line in job.logs(follow=True):
                print(f"[{'job' if line.rank is None else line.rank}] {line.text}", flush=True)  # noqa: T201
        job.wait()
        if raise_on_error and self.get_status() == "Failed":
            job.results()
        return {"runId": self.id, "status": self.get_status()}

    def cancel(self) -> None:
        """Cancel the job. Raises JobNotRunning if it has ended."""
        self.job.cancel()

    def get_metrics(self, name: str | None = None) -> dict[str, Any]:
        """Return the values of each metric in the order of their steps; a single value is not in a list.

        The values are those of the lowest rank that logged the metric; ``job.metrics()`` has all ranks.
        """
        frame = self.job.metrics().drop(columns=["step", "time", "attempt"], errors="ignore").set_index("rank")
        metrics = {}
        for metric in frame.columns if name is None else [name]:
            series = frame[metric].dropna()
            values = series[series.index == series.index.min()].tolist()
            metrics[metric] = values[0] if len(values) == 1 else values
        return metrics

    @classmethod
    def get_context(cls) -> Run:
        """Return the run of this rank; outside of a job, return a run that prints its metrics."""
        return cls(None, os.environ.get("DISTDL_JOB_ID", f"OfflineRun_{uuid.uuid4()}"))

    def log(self, name: str, value: Any, description: str = "", step: int | None = None) -> None:
        """Log one value of a metric in the entry script; the default step is the number of previous values.

        Raises TypeError if the value is not a single number.
        """
        report.user_names.add(name)
        report.send(next(self._steps[name]) if step is None else step, {name: value})

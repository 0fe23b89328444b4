"""Azure ML's SDK v1 (azureml-core, azureml-train-core, azureml-widgets 1.x): the same calls, as jobs of any cluster.

``from distdl_jupyter.compat.azureml import Experiment, PyTorch, Run`` in place of the imports from ``azureml.core``,
``azureml.train.dnn`` and ``azureml.core.run`` (https://learn.microsoft.com/python/api/azureml-train-core). The same
import in the entry script lets ``Run.get_context().log(...)`` draw the job's curves. No workspace is needed: a job runs
on this machine, or on the cluster that ``compute_target`` names.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
import uuid
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker import report

if TYPE_CHECKING:
    from distdl_jupyter.client import Job

#: Options of an estimator that mean nothing here, and why.
_WITHOUT_MEANING = {
    "vm_priority": "the cluster determines the machines",
    "image_registry_details": "no image is fetched from a registry",
    "framework_version": "ranks use the PyTorch that is installed; name another one in pip_packages",
    "source_directory_data_store": "the folder of the script is copied to the nodes automatically",
    "_enable_optimized_mode": "no image is built",
    "_show_lint_warnings": "every job's code is checked before it starts",
    "_show_package_warnings": "every job's code is checked before it starts",
}
#: Options of a container, which only Azure ML starts for a job.
_OF_CONTAINERS = {
    "custom_docker_image": "ranks use the Python of this process without a container",
    "shm_size": "ranks run without a container and can use all shared memory of the machine",
}
#: How the id of a run begins that is outside of a job.
_OFFLINE = "OfflineRun_"
#: Azure's words for the states of a job.
_STATUS = {
    "queued": "Queued", "preparing": "Preparing", "starting": "Starting", "running": "Running",
    "canceling": "CancelRequested", "completed": "Completed", "failed": "Failed", "canceled": "Canceled",
    "lost": "Failed",
}  # fmt: skip


class MpiConfiguration:
    """MPI for ``distributed_training``: ranks of Horovod."""

    def __init__(self, process_count_per_node: int = 1, node_count: int = 1) -> None:
        """``node_count`` is that of the estimator where both are given, and the larger wins."""
        self.process_count_per_node, self.node_count = process_count_per_node, node_count


class Mpi(MpiConfiguration):
    """The older name of MpiConfiguration."""

    def __init__(self, process_count_per_node: int = 1) -> None:
        super().__init__(process_count_per_node)


class Gloo:
    """Gloo for ``distributed_training``: ranks of torch.distributed."""

    def __init__(self) -> None:
        """It has no settings."""


class Nccl:
    """NCCL for ``distributed_training``: ranks of torch.distributed with a GPU each."""

    def __init__(self) -> None:
        """It has no settings."""


#: What the classes above, or Azure's own of the same names, stand for.
_TRAINING = {"Mpi": "mpi", "MpiConfiguration": "mpi", "Gloo": "gloo", "Nccl": "nccl"}


class PyTorch:
    """The estimator: which script runs where, with which packages and data. ``Experiment.submit`` starts it."""

    FRAMEWORK_NAME = "PyTorch"

    def __init__(
        self,
        source_directory: str,
        *,
        compute_target: Any = None,
        vm_size: str | None = None,
        vm_priority: str | None = None,
        entry_script: str | None = None,
        script_params: Mapping[str, Any] | None = None,
        node_count: int = 1,
        process_count_per_node: int = 1,
        distributed_backend: str | None = None,
        distributed_training: Any = None,
        use_gpu: bool = False,
        use_docker: bool = True,
        custom_docker_base_image: str | None = None,
        custom_docker_image: str | None = None,
        image_registry_details: Any = None,
        user_managed: bool = False,
        conda_packages: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        conda_dependencies_file_path: str | None = None,
        pip_requirements_file_path: str | None = None,
        conda_dependencies_file: str | None = None,
        pip_requirements_file: str | None = None,
        environment_variables: Mapping[str, str] | None = None,
        environment_definition: Any = None,
        inputs: Any = None,
        source_directory_data_store: Any = None,
        shm_size: str | None = None,
        resume_from: Any = None,
        max_run_duration_seconds: int | None = None,
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Take Azure's options; one that means nothing here is a warning that says why.

        ``compute_target`` is the name of a cluster of this package, or an object with that ``name``; left out, this
        machine. ``use_gpu`` means a GPU each where there are GPUs; False hides them. ``inputs``, values of
        ``script_params`` and ``resume_from`` may be Azure's DataReference and DataPath of a container, and ``inputs``
        and ``resume_from`` whatever ``data=`` of ``submit`` takes; ``resume_from`` becomes the script's
        ``--resume-from``. ``use_docker``, ``user_managed`` and ``_disable_validation`` change nothing: ranks use the
        Python of this process. Raises InvalidSpec.
        """
        if not entry_script:
            raise InvalidSpec(
                "An estimator needs entry_script, the path of the script in source_directory.",
                code="estimator-without-script",
                field="entry_script",
            )
        self.source_directory = source_directory or "."
        self.entry_script = entry_script
        where, on_azure = _target(compute_target)
        containers = {"custom_docker_image": custom_docker_image or custom_docker_base_image, "shm_size": shm_size}
        _warn({
            "vm_priority": vm_priority, "image_registry_details": image_registry_details,
            "framework_version": framework_version, "source_directory_data_store": source_directory_data_store,
            "_enable_optimized_mode": _enable_optimized_mode, "_show_lint_warnings": _show_lint_warnings,
            "_show_package_warnings": _show_package_warnings, **({} if on_azure else containers),
        })  # fmt: skip
        if environment_definition is not None:
            raise InvalidSpec(
                "environment_definition is an environment of the Azure ML SDK, which is not supported here.",
                code="estimator-environment",
                field="environment_definition",
                hint="Set pip_packages, conda_packages and environment_variables instead.",
            )
        if conda_dependencies_file or conda_dependencies_file_path:
            raise InvalidSpec(
                "conda_dependencies_file is not supported here.",
                code="estimator-conda-file",
                field="conda_dependencies_file",
                hint="List the packages in conda_packages and pip_packages.",
            )
        requirements = pip_requirements_file or pip_requirements_file_path
        ranks = _ranks(node_count, process_count_per_node, distributed_backend, distributed_training)
        sources = _Sources(mounts=on_azure)
        self.script_params = {sources.text(key): sources.text(one) for key, one in (script_params or {}).items()}
        sources.add(inputs, "inputs")
        if resume_from is not None:
            self.script_params["--resume-from"] = sources.resumed(resume_from)
        #: What each rank sets before the script runs, see ``worker.layout``.
        self.layout = {"variables": sources.variables} if sources.variables else {}
        #: The options of ``submit``.
        self.options = {name: value for name, value in {
            "compute_target": where, "vm_size": vm_size, **ranks, "use_gpu": None if use_gpu else False,
            "pip_packages": pip_packages, "conda_packages": conda_packages,
            "requirements": requirements and str(Path(self.source_directory, requirements)),
            "environment_variables": environment_variables, "data": sources.found,
            "max_run_duration_seconds": max_run_duration_seconds,
            **({"environment": containers["custom_docker_image"], "shm_size": shm_size} if on_azure else {}),
        }.items() if value not in (None, "", {}, [], ())}  # fmt: skip


def _warn(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value:
            why = (_WITHOUT_MEANING | _OF_CONTAINERS)[name]
            warnings.warn(f"The argument {name} of the estimator is ignored: {why}.", stacklevel=3)


def _target(compute_target: Any) -> tuple[str, bool]:
    """Return the cluster's name and whether it is Azure ML. Raises InvalidSpec."""
    from distdl_jupyter import cluster_configs

    if compute_target is None:
        return "local", False
    name = str(getattr(compute_target, "name", compute_target))
    try:
        return name, cluster_configs.find(name).kind == "azureml"
    except InvalidSpec as error:
        raise InvalidSpec(
            error.message, code="estimator-cluster-unknown", field="compute_target",
            hint=f'Add it once: distdl_jupyter.add_cluster("{name}", "azureml", workspace=..., compute="{name}").',
        ) from None  # fmt: skip


def _ranks(nodes: int, processes: int, backend: str | None, training: Any) -> dict[str, Any]:
    """Return nodes, processes on each and the backend as options of ``submit``. Raises InvalidSpec."""
    if training is not None:
        kind = _TRAINING.get(type(training).__name__)
        if kind is None:
            raise InvalidSpec(
                f"distributed_training is {training!r:.80}, but must be MpiConfiguration(), Gloo() or Nccl().",
                code="estimator-training-invalid",
                field="distributed_training",
            )
        if backend and backend.lower() != kind:
            raise InvalidSpec(
                f"distributed_backend is {backend}, but distributed_training is {kind}.",
                code="estimator-backends-differ",
                field="distributed_backend",
                hint="Set only one of them.",
            )
        backend = kind
        if kind == "mpi":
            processes = max(processes, training.process_count_per_node)
            nodes = max(nodes, getattr(training, "node_count", 1))
    if not backend and (nodes != 1 or processes != 1):
        raise InvalidSpec(
            "Several processes need distributed_backend or distributed_training.",
            code="estimator-without-backend",
            field="distributed_backend",
            hint='Set distributed_backend="mpi" for Horovod, "gloo" or "nccl" for torch.distributed.',
        )
    return {"node_count": nodes, "process_count_per_node": processes,
            "distributed_backend": (backend or "plain").lower()}  # fmt: skip


# data -------------------------------------------------------------------------------------------


class _Sources:
    """The data sources of an estimator, and what stands for them on the script's command line."""

    def __init__(self, *, mounts: bool) -> None:
        self.found: dict[str, Any] = {}
        #: Variables by which Azure names a reference, with ours.
        self.variables: list[tuple[str, str]] = []
        self._mounts = mounts

    def add(self, given: Any, field: str) -> None:
        """Take what ``inputs`` holds. Raises InvalidSpec."""
        from distdl_jupyter.core import data

        for one in given if isinstance(given, list | tuple) else [given]:
            if hasattr(one, "data_reference_name"):
                self.text(one)
            elif one is not None and not isinstance(one, str | Mapping | data.DataSource):
                raise InvalidSpec(
                    f"{field} contains {one!r:.80}, which is neither a DataReference nor an address.",
                    code="data-reference-invalid",
                    field=field,
                    hint='Example: inputs=["train=blob://account/container/cifar10"].',
                )
            else:
                self.found |= dict(data.pairs(one))

    def text(self, value: Any) -> Any:
        """Return a value of the command line; a reference becomes the variable that holds its folder."""
        if not hasattr(value, "data_reference_name"):
            return value
        store, label = value.datastore, str(value.data_reference_name)
        account, container = (getattr(store, name, None) for name in ("account_name", "container_name"))
        if not account or not container or getattr(store, "datastore_type", "AzureBlob") != "AzureBlob":
            raise InvalidSpec(
                f"The data reference {label} is not in an Azure Blob container.",
                code="data-reference-not-blob",
                field="inputs",
                hint='Set its address: inputs=["train=shared:/mnt/data"].',
            )
        # A reference without a name has 32 hexadecimal digits for one.
        plain = re.sub(r"[^A-Za-z0-9_]", "_", label)
        name = (plain if plain[0].isalpha() else f"_{plain}")[:40]
        mode = "?mode=mount" if self._mounts and value.mode == "mount" else ""
        path = str(value.path_on_datastore or "").strip("/.")
        self.found[name] = f"blob://{account}/{container}" + (f"/{path}" if path else "") + mode
        variable = f"AZUREML_DATAREFERENCE_{plain}"
        self.variables.append((variable, f"$DISTDL_DATA_{name.upper()}"))
        return f"${variable}"

    def resumed(self, given: Any) -> str:
        """Return what stands for the folder of ``resume_from``, which Azure calls MODEL_LOCATION."""
        if hasattr(given, "create_data_reference"):
            from azureml.data.datapath import DataPathComputeBinding  # type: ignore[import-not-found]  # its home

            return str(self.text(given.create_data_reference("MODEL_LOCATION", DataPathComputeBinding(mode="mount"))))
        self.add({"MODEL_LOCATION": os.fspath(given)}, "resume_from")
        self.variables.append(("AZUREML_DATAREFERENCE_MODEL_LOCATION", "$DISTDL_DATA_MODEL_LOCATION"))
        return "$AZUREML_DATAREFERENCE_MODEL_LOCATION"


# runs -------------------------------------------------------------------------------------------


class Experiment:
    """A name under which runs are started."""

    def __init__(
        self,
        workspace: Any,
        name: str,
        _skip_name_validation: bool = False,
        _id: str | None = None,
        _archived_time: Any = None,
        _create_in_cloud: bool = True,
        _experiment_dto: Any = None,
        **kwargs: Any,
    ) -> None:
        """``workspace`` may be None: the cluster of a run knows its own."""
        self.workspace, self.name = workspace, name

    def submit(self, config: PyTorch, tags: Mapping[str, str] | None = None, **kwargs: Any) -> Run:
        """Start a job named as the experiment and return at once. Raises what ``submit`` raises."""
        from distdl_jupyter import capture, client

        if not isinstance(config, PyTorch):
            raise InvalidSpec(
                f"Experiment.submit needs an estimator, not {type(config).__name__}.",
                code="experiment-without-estimator",
                field="config",
                hint="Create one: distdl_jupyter.compat.azureml.PyTorch(...).",
            )
        for name in (*(["tags"] if tags else []), *kwargs):
            warnings.warn(
                f"The argument {name} of Experiment.submit is ignored, because a job only has a name.", stacklevel=2
            )
        draft = capture.capture_script(config.entry_script, config.source_directory, config.script_params)
        draft = dataclasses.replace(draft, payload_json={**draft.payload_json, "layout": config.layout})
        return Run(self, client.launch(draft, **{"name": self.name, **config.options}).id)

    def __repr__(self) -> str:
        return f"Experiment(Name: {self.name})"


class Run:
    """A run of an experiment, which is a job; in the entry script ``Run.get_context()`` is the one that runs it."""

    def __init__(self, experiment: Experiment | None, run_id: str, outputs: Any = None, **kwargs: Any) -> None:
        """Attach to a job by its id."""
        self.experiment, self.id = experiment, run_id
        self._steps: dict[str, Iterator[int]] = defaultdict(itertools.count)

    @property
    def job(self) -> Job:
        """The job with all that this package knows of it. Raises JobNotFound."""
        from distdl_jupyter import client

        return client.attach(self.id)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def status(self) -> str:
        """Azure's word for the job's state now."""
        return self.get_status()

    def get_status(self) -> str:
        """Return Azure's word for the job's state now; a lost job has failed."""
        return _STATUS[self.job.state.value]

    def get_details(self) -> dict[str, Any]:
        """Return ``runId``, ``target``, ``status``, ``startTimeUtc``, ``endTimeUtc`` and ``error``, where there is one.

        Times are texts of ISO 8601.
        """
        from datetime import UTC, datetime

        view = self.job.view()
        found = {"runId": self.id, "target": view.compute_target, "status": _STATUS[view.state.value]}
        for name, moment in (("startTimeUtc", view.started), ("endTimeUtc", view.ended)):
            if moment is not None:
                found[name] = datetime.fromtimestamp(moment, UTC).isoformat()
        return found | ({"error": view.reason} if found["status"] == "Failed" else {})

    def wait_for_completion(
        self, show_output: bool = False, wait_post_processing: bool = False, raise_on_error: bool = True
    ) -> dict[str, Any]:
        """Wait for the end and return ``get_details()``; with ``show_output`` print the log of all ranks as it comes.

        An interrupt ends the waiting, and the job goes on. Raises JobFailed with the first rank's own error.
        """
        job = self.job
        if show_output:
            for line in job.logs(follow=True):
                sys.stdout.write(f"[{'job' if line.rank is None else line.rank}] {line.text}\n")
                sys.stdout.flush()
        job.wait()
        if raise_on_error and self.get_status() == "Failed":
            job.results()
        return self.get_details()

    def cancel(self) -> None:
        """Stop the job. Raises JobNotRunning when it has ended."""
        self.job.cancel()

    def get_metrics(
        self, name: str | None = None, recursive: bool = False, run_type: str | None = None, populate: bool = False
    ) -> dict[str, Any]:
        """Return the values of each metric in the order in which they were logged, one value as itself.

        Of a metric that several ranks have logged they are those of the lowest; ``job.metrics()`` has all.
        """
        from distdl_jupyter.core import events

        values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for batch, _ in events.batches(self.job.folder.events):
            for event in batch:
                for metric, value in event["values"].items() if event["type"] == "metric" else ():
                    values[metric][event["rank"]].append(events.number_from_json(value))
        lowest = {metric: by_rank[min(by_rank)] for metric, by_rank in values.items() if name in (None, metric)}
        return {metric: logged if len(logged) > 1 else logged[0] for metric, logged in lowest.items()}

    # in the entry script --------------------------------------------------------------------------

    @classmethod
    def get_context(
        cls,
        allow_offline: bool = True,
        used_for_context_manager: bool = False,  # noqa: ARG003  Azure's
        **kwargs: Any,  # noqa: ARG003
    ) -> Run:
        """Return the run of this rank; outside of a job one whose metrics are printed.

        Raises LookupError outside of a job when ``allow_offline`` is False.
        """
        id_ = os.environ.get("DISTDL_JOB_ID")
        if id_ is None and not allow_offline:
            raise LookupError("Run.get_context() returns a run only inside a job. Start the script with "
                              "Experiment.submit, or remove allow_offline=False.")  # fmt: skip
        return cls(None, id_ or f"{_OFFLINE}{uuid.uuid4()}")

    def log(self, name: str, value: Any, description: str = "", step: int | None = None) -> None:
        """Log one value of a metric; without ``step`` it stands behind those that were logged before.

        Raises TypeError for a value that is not one number, InvalidSpec for a run of another process.
        """
        if isinstance(value, list | range | Iterator):
            raise TypeError("Run.log accepts one number. Use Run.log_list for several.")
        if self.id != os.environ.get("DISTDL_JOB_ID") and not self.id.startswith(_OFFLINE):
            raise InvalidSpec(
                "Only the ranks of a run can log to it.",
                code="run-log-outside-rank",
                field="name",
                hint="Call Run.get_context().log(...) in the entry script.",
            )
        report.own_names.add(name)
        report.send(next(self._steps[name]) if step is None else step, {name: value})

    def log_list(self, name: str, value: Iterable[Any], description: str = "") -> None:
        """Log several values of a metric. Raises what ``log`` raises."""
        for one in value:
            self.log(name, one)

    def flush(self, timeout_seconds: float = 300) -> None:
        """Wait until values that were still on a GPU are sent."""
        report.flush()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"Run.{name} of azureml-core is not supported by distdl_jupyter.compat.azureml. Use run.job, "
            "the handle of the job."
        )

    def __repr__(self) -> str:
        of = self.experiment.name if self.experiment is not None else ""
        return f"Run(Experiment: {of}, Id: {self.id})"


class RunDetails:
    """``azureml.widgets.RunDetails(run).show()``: the job's live panel in a notebook."""

    def __init__(self, run_instance: Run) -> None:
        self._run = run_instance

    def show(self, render_lib: Any = None, widget_settings: Any = None) -> None:
        """Show the panel; outside of a notebook nothing is shown. ``render_lib``, ``widget_settings`` mean nothing."""
        blocking.show(self._run.job)

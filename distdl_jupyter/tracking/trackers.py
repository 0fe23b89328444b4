"""The experiment trackers: MLflow, TensorBoard and Weights & Biases. Each job is one run.

A tracker may raise any exception; ``runs`` translates it into one sentence without addresses or secrets.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from distdl_jupyter.core import store, tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.tracking import TrackerRecord
from distdl_jupyter.core.user_settings import ReportingSettings

#: The default MLflow experiment and W&B project.
_PROJECT = "distdl_jupyter"
# MLflow's limits: metrics and parameters per request, characters per parameter and per tag.
_MAX_METRICS, _MAX_PARAMS = 1000, 100
_MAX_PARAM_SIZE, _MAX_TAG_SIZE = 500, 5000
#: Environment variables that set short timeouts, and disable telemetry and output of the tracker libraries.
QUIET_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_INIT_TIMEOUT": "20",
    "WANDB_SILENT": "true",
    "WANDB_X_DISABLE_MACHINE_INFO": "true",
    "WANDB_X_DISABLE_STATS": "true",
}


class MeanPoint(NamedTuple):
    """The mean of a metric over ranks at a step and a time (epoch seconds)."""

    name: str
    step: float
    t: float
    value: float


class Tracker:
    """Base class of the trackers. DistDLError and ImportError are not retried."""

    name: str
    #: The location of the run, without secrets.
    location: str
    #: Whether another process must rewrite the run from the start.
    needs_rewrite = False

    def __init__(self, spec: JobSpec, job: Path, settings: ReportingSettings) -> None:
        self.spec = spec
        self.group = spec.group.name if spec.group else ""
        self.folder = tracking.get_folder(job, self.name)

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Open the recorded run, else an existing run of the job, else a new run.

        Return the ids of the run and of its experiment, and the URL of its page, or "" if it has none.
        """
        raise NotImplementedError

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write parameters and tags; can be repeated. Does nothing by default."""

    def write(self, points: Sequence[MeanPoint]) -> None:
        """Write points and return after they are stored."""

    def upload(self, folder: Path, files: Sequence[Path]) -> None:
        """Upload files below ``folder`` as artifacts. Does nothing by default."""

    def close(self, state: State | None, ended: float | None = None) -> None:
        """End the run with the job's state and end (epoch seconds). If they are None, keep it open for resuming."""


def get_host(address: str) -> str:
    """Return the host in an address without credentials, or "this machine" for a local address."""
    is_databricks = address.startswith("databricks")
    return urlsplit(address).netloc.rpartition("@")[2] or ("databricks" if is_databricks else "this machine")


def get_local_store() -> str:
    """Return the URI of the user's own MLflow store."""
    return f"sqlite:///{store.get_home() / 'mlflow' / 'mlflow.db'}"


def find_mlflow_address(settings: ReportingSettings) -> str:
    """Return the MLflow URI in the settings or the environment, else that of the user's own store."""
    return settings.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or get_local_store()


class MLflow(Tracker):
    """A run in MLflow, or in Azure ML with an ``azureml://`` address."""

    name = "mlflow"

    def __init__(self, spec: JobSpec, job: Path, settings: ReportingSettings) -> None:
        super().__init__(spec, job, settings)
        import mlflow

        self._address = find_mlflow_address(settings)
        self.location, self._is_local = get_host(self._address), self._address == get_local_store()
        self._mlflow: Any = mlflow
        self._client: Any = None
        self._run = ""

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Open the run."""
        if self._client is None:
            if self._is_local:
                (store.get_home() / "mlflow").mkdir(parents=True, exist_ok=True, mode=0o700)
            self._client = self._mlflow.MlflowClient(tracking_uri=self._address)
        experiment = record.experiment or self._find_experiment()
        self._run = record.run or self._find_or_create(experiment)
        self._client.update_run(self._run, status="RUNNING")
        url = urlsplit(self._address.rstrip("/"))
        page = f"{url.scheme}://{self.location}{url.path}/#/experiments/{experiment}/runs/{self._run}"
        return self._run, experiment, page if url.scheme in ("http", "https") else ""

    def _find_experiment(self) -> str:
        name = self.group or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        options = {"artifact_location": str(store.get_home() / "mlflow" / "artifacts")} if self._is_local else {}
        if self._client.get_experiment_by_name(name) is None:
            with contextlib.suppress(Exception):  # another job may have created it in the meantime
                self._client.create_experiment(name, **options)
        return str(self._client.get_experiment_by_name(name).experiment_id)

    def _find_or_create(self, experiment: str) -> str:
        """Return the run of the job. It may already exist if the response to a previous request was lost."""
        runs = self._client.search_runs([experiment], f"tags.`distdl.job_id` = '{self.spec.id}'", max_results=1)
        if not runs:
            tags, created = {"distdl.job_id": self.spec.id}, int(1000 * self.spec.created)
            runs = [self._client.create_run(experiment, created, tags, self.spec.name)]
        return str(runs[0].info.run_id)

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write parameters and tags."""
        # Also set MLflow's standard tags for the commit, the branch and the notebook.
        names = {"git.commit": "source.git.commit", "git.branch": "source.git.branch", "distdl.notebook": "source.name"}
        tags = {**tags, **{f"mlflow.{mlflow_name}": tags[name] for name, mlflow_name in names.items() if name in tags}}
        entities = self._mlflow.entities
        self._client.log_batch(self._run, tags=[entities.RunTag(name, tags[name][:_MAX_TAG_SIZE]) for name in tags])
        params = [entities.Param(_to_mlflow_name(name), value[:_MAX_PARAM_SIZE]) for name, value in parameters.items()]
        for batch in _split_batches(params, _MAX_PARAMS):
            self._client.log_batch(self._run, params=batch)

    def write(self, points: Sequence[MeanPoint]) -> None:
        """Write points."""
        metric = self._mlflow.entities.Metric
        metrics = [metric(_to_mlflow_name(name), value, int(1000 * t), round(step)) for name, step, t, value in points]
        for batch in _split_batches(metrics, _MAX_METRICS):
            self._client.log_batch(self._run, metrics=batch)

    def upload(self, folder: Path, files: Sequence[Path]) -> None:
        """Upload files."""
        for file in files:
            self._client.log_artifact(self._run, str(file), str("outputs" / file.relative_to(folder).parent))

    def close(self, state: State | None, ended: float | None = None) -> None:
        """End the run."""
        if state:
            status = {State.COMPLETED: "FINISHED", State.CANCELED: "KILLED"}.get(state, "FAILED")
            self._client.set_terminated(self._run, status=status, end_time=int(1000 * ended) if ended else None)


def _to_mlflow_name(text: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", text, flags=re.ASCII).strip("/ ") or "_"


class TensorBoard(Tracker):
    """Event files in the job's folder."""

    name = "tensorboard"

    def __init__(self, spec: JobSpec, job: Path, settings: ReportingSettings) -> None:
        super().__init__(spec, job, settings)
        # Prevent TensorBoard from importing TensorFlow, which takes seconds and is not needed.
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.location = str(self.folder)
        self._event_type, self._summary_type, self._writer_type = event_pb2.Event, summary_pb2.Summary, EventFileWriter
        self._writer: Any = None

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Open the run."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writer = self._writer_type(str(self.folder / "mean"))
        return self.spec.id, "", ""

    def write(self, points: Sequence[MeanPoint]) -> None:
        """Write points."""
        for name, step, t, value in points:
            summary = self._summary_type(value=[self._summary_type.Value(tag=name, simple_value=value)])
            self._writer.add_event(self._event_type(wall_time=t, step=round(step), summary=summary))
        self._writer.flush()

    def close(self, state: State | None, ended: float | None = None) -> None:
        """End the run."""
        self._writer.close()


class WandB(Tracker):
    """A run in Weights & Biases with the id of the job. Offline, it is a folder for ``wandb sync``."""

    name = "wandb"

    def __init__(self, spec: JobSpec, job: Path, settings: ReportingSettings) -> None:
        super().__init__(spec, job, settings)
        os.environ.setdefault("WANDB_DATA_DIR", str(self.folder / "data"))
        os.environ.setdefault("WANDB_CACHE_DIR", str(self.folder / "cache"))
        import wandb

        self._wandb: Any = wandb
        self._run: Any = None
        # An offline run cannot be resumed, so another process writes it to a new folder.
        self.needs_rewrite = os.environ.get("WANDB_MODE") == "offline"
        server = os.environ.get("WANDB_BASE_URL", "https://wandb.ai")
        self.location = str(self.folder) if self.needs_rewrite else get_host(server)

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Open the run."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.needs_rewrite:
            for run_folder in self.folder.glob(f"wandb/offline-run-*-{self.spec.id}"):
                shutil.rmtree(run_folder)
        elif not (os.environ.get("WANDB_API_KEY") or self._wandb.api.api_key):
            text = "Weights & Biases needs an API key. Set WANDB_API_KEY, or run: wandb login"
            raise DistDLError(text, code="tracker-key-missing")
        project = os.environ.get("WANDB_PROJECT") or _PROJECT
        self._run = self._wandb.init(
            project=project,
            id=self.spec.id,
            name=self.spec.name,
            group=self.group or None,
            dir=str(self.folder),
            mode="offline" if self.needs_rewrite else "online",
            resume=None if self.needs_rewrite else "allow",
        )
        # Use a metric as the step, because W&B's own step cannot decrease after a restart of the ranks.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return self.spec.id, project, "" if self.needs_rewrite else str(self._run.url or "")

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write parameters and tags."""
        self._run.config.update({**parameters, **tags}, allow_val_change=True)

    def write(self, points: Sequence[MeanPoint]) -> None:
        """Write points."""
        for (step, t), group in itertools.groupby(points, lambda point: (point.step, point.t)):
            self._run.log({"step": step, "_timestamp": t, **{point.name: point.value for point in group}})

    def upload(self, folder: Path, files: Sequence[Path]) -> None:
        """Upload files."""
        if files:
            artifact = self._wandb.Artifact(f"outputs-{self.spec.id}", type="outputs")
            for file in files:
                artifact.add_file(str(file), name=str(file.relative_to(folder)), policy="immutable")
            self._run.log_artifact(artifact)

    def close(self, state: State | None, ended: float | None = None) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish(exit_code=0 if state in (None, State.COMPLETED) else 1)


def _split_batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB}

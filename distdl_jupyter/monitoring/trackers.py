"""The trackers: one run of a job in MLflow, as TensorBoard's event files, and in Weights & Biases.

Each is opened, given what changed, and closed by its own process (``monitoring.tracking``), with the library of that
tracker. Whatever a library raises becomes a ``Trouble``, one sentence without any address but its host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from distdl_jupyter.core import store, tracking
from distdl_jupyter.core.state import State

if TYPE_CHECKING:
    from distdl_jupyter.core.tracking import TrackerRecord
    from distdl_jupyter.monitoring.points import Point
    from distdl_jupyter.monitoring.settings import MonitoringSettings

#: Seconds that a server has to answer.
_TIMEOUT = 20
#: What MLflow takes at once, and the longest value of a parameter and of a tag on all of its servers.
_BATCH, _PARAMS, _LONGEST_PARAM, _LONGEST_TAG = 1000, 100, 500, 5000
#: What the libraries would otherwise tell their makers, or say themselves.
SILENCE = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_TIMEOUT), "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false", "GIT_PYTHON_REFRESH": "quiet",
    "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off",
}  # fmt: skip


class Trouble(Exception):
    """The tracker does not take it now; a sentence. It may later."""


class CannotTrack(Trouble):
    """The tracker cannot be used here, whatever is tried."""


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """What a run is made of: the job's folder, id, name, creation (epoch seconds), and its group's name or ""."""

    folder: Path
    id: str
    name: str
    created: float
    group: str = ""


class Tracker(ABC):
    """One run. ``open`` finds the run that a record names, else that of the job, else makes one."""

    name: str
    #: Whether the run is made anew, from the first event on, when another process goes on with it.
    begins_anew = False

    def __init__(self, job: TrackedJob, settings: MonitoringSettings) -> None:
        self.job, self.settings = job, settings

    @property
    def folder(self) -> Path:
        """Where a tracker that keeps its run beside the job has it."""
        return tracking.folder_of(self.job.folder, self.name)

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the run is, in words without secrets."""

    @abstractmethod
    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Return the run, its experiment, and a page of it. Raises Trouble."""

    @abstractmethod
    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write parameters and tags; those that were written before are given once more."""

    @abstractmethod
    def write(self, points: Sequence[Point]) -> None:
        """Write points; when it returns they are kept."""

    def keep(self, folder: Path, files: Sequence[Path]) -> None:  # noqa: B027 - TensorBoard keeps no files
        """Keep files, all in ``folder``, as artefacts."""

    @abstractmethod
    def close(self, state: State | None, ended: float | None = None) -> None:
        """End the run as the job did, at ``ended`` (epoch seconds), or leave it open where it has not (None)."""

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Turn what a library raises into a sentence."""
        try:
            yield
        except Trouble:
            raise
        except Exception as error:  # noqa: BLE001 - its text may hold what is secret
            raise Trouble(tracking.trouble(tracking.TITLES[self.name], self.place, error)) from None


def missing(name: str) -> CannotTrack:
    """Return what is said where a tracker's package is not installed."""
    return CannotTrack(tracking.missing(name))


def host_of(address: str) -> str:
    """Return what may be said of an address: its host, or that it is a folder or database here."""
    split = urlsplit(address)
    if split.hostname:
        with contextlib.suppress(ValueError):
            return f"{split.hostname}:{split.port}" if split.port else split.hostname
        return split.hostname
    return "databricks" if split.scheme == "databricks" or address == "databricks" else "this machine"


# MLflow ---------------------------------------------------------------------------------------


def local_store() -> str:
    """Return the address of the user's own MLflow, which is used where no other is named."""
    return f"sqlite:///{store.home() / 'mlflow' / 'mlflow.db'}"


def mlflow_address(settings: MonitoringSettings) -> str:
    """Return where MLflow is: as the settings or the environment say, else the user's own store."""
    return settings.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or local_store()


class MLflow(Tracker):
    """A run of MLflow, or of Azure ML behind its tracking address (``azureml://``, with the package azureml-mlflow)."""

    name = "mlflow"

    def __init__(self, job: TrackedJob, settings: MonitoringSettings) -> None:
        super().__init__(job, settings)
        self._address, self._run = mlflow_address(settings), ""
        try:
            import mlflow
        except ImportError:
            raise missing(self.name) from None
        if self._address.startswith("azureml:") and not _has_azureml():
            raise CannotTrack(tracking.NO_AZUREML)
        if self._is_own:
            (store.home() / "mlflow").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._client: Any = None
        self._entities: Any = mlflow.entities

    @property
    def place(self) -> str:
        """The server's host."""
        return host_of(self._address)

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Find the run by the record or by the job's id, which is a tag of it, or make it."""
        if record.run and record.place != self.place:
            raise CannotTrack(tracking.elsewhere(record, self.place))
        with self.answering():
            if self._client is None:
                from mlflow import MlflowClient

                self._client = MlflowClient(tracking_uri=self._address)
            experiment = record.experiment or self._experiment()
            self._run = record.run or self._found(experiment) or self._made(experiment)
            self._client.update_run(self._run, status="RUNNING")
        address = self._address.rstrip("/")
        split = urlsplit(address)
        page = ""
        if split.scheme in ("http", "https"):
            page = f"{split.scheme}://{self.place}{split.path}/#/experiments/{experiment}/runs/{self._run}"
        return self._run, experiment, page

    def _experiment(self) -> str:
        name = self.job.group or self.settings.experiment
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        more = {"artifact_location": str(store.home() / "mlflow" / "artifacts")} if self._is_own else {}
        try:
            return str(self._client.create_experiment(name, **more))
        except Exception:
            # Another job may have made it at the same moment.
            if (known := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(known.experiment_id)

    @property
    def _is_own(self) -> bool:
        return self._address == local_store()

    def _found(self, experiment: str) -> str:
        """Return the run that was made when its answer did not arrive, "" when there is none."""
        runs = self._client.search_runs([experiment], f"tags.`distdl.job_id` = '{self.job.id}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def _made(self, experiment: str) -> str:
        run = self._client.create_run(
            experiment, start_time=int(1000 * self.job.created), tags={"distdl.job_id": self.job.id},
            run_name=self.job.name,
        )  # fmt: skip
        return str(run.info.run_id)

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write them under names that MLflow takes; its own tags for the commit and the source are set too."""
        same = {"git.commit": "source.git.commit", "git.branch": "source.git.branch", "distdl.notebook": "source.name"}
        own = {f"mlflow.{theirs}": tags.get(ours, "") for ours, theirs in same.items()}
        whole = {**tags, **{name: value for name, value in own.items() if value}}
        params = [self._entities.Param(_name(name), value[:_LONGEST_PARAM]) for name, value in parameters.items()]
        with self.answering():
            for begin in range(0, max(1, len(params)), _PARAMS):
                self._client.log_batch(
                    self._run, params=params[begin : begin + _PARAMS],
                    tags=[self._entities.RunTag(name, value[:_LONGEST_TAG]) for name, value in whole.items()]
                    if begin == 0 else [],
                )  # fmt: skip

    def write(self, points: Sequence[Point]) -> None:
        """Write them in batches; a rank's are under ``name/rank_0``."""
        metrics = [
            self._entities.Metric(_name(curve(one)), one.value, int(1000 * one.t), round(one.step)) for one in points
        ]
        with self.answering():
            for begin in range(0, len(metrics), _BATCH):
                self._client.log_batch(self._run, metrics=metrics[begin : begin + _BATCH])

    def keep(self, folder: Path, files: Sequence[Path]) -> None:
        """Upload them one after another, under ``outputs``."""
        for file in files:
            below = file.relative_to(folder).parent
            with self.answering():
                self._client.log_artifact(self._run, str(file), str(Path("outputs") / below))

    def close(self, state: State | None, ended: float | None = None) -> None:
        """Set the run's status: FINISHED, FAILED, or KILLED for a job that was canceled."""
        status = {State.COMPLETED: "FINISHED", State.CANCELED: "KILLED"}.get(state, "FAILED") if state else None
        with self.answering():
            if status:
                self._client.set_terminated(self._run, status=status, end_time=int(1000 * ended) if ended else None)


def _has_azureml() -> bool:
    from importlib.util import find_spec

    return find_spec("azureml") is not None and find_spec("azureml.mlflow") is not None


def _name(text: str) -> str:
    """Return a name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", text, flags=re.ASCII).strip("/ ") or "_"


def curve(point: Point) -> str:
    """Return the name of a point's curve where all curves of a run are in one list."""
    return point.name if point.rank is None else f"{point.name}/rank_{point.rank}"


# TensorBoard ----------------------------------------------------------------------------------


def keep_tensorboard_light() -> None:
    """Keep TensorBoard, before it is imported, from TensorFlow: its import takes seconds and nothing here needs it."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))


class TensorBoard(Tracker):
    """Event files in the job's folder: the means in one run, each rank in a run of its own beside it."""

    name = "tensorboard"

    def __init__(self, job: TrackedJob, settings: MonitoringSettings) -> None:
        super().__init__(job, settings)
        keep_tensorboard_light()
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise missing(self.name) from None
        self._event, self._summary, self._writer = event_pb2.Event, summary_pb2, EventFileWriter
        self._runs: dict[str, Any] = {}

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Make the folder; another process goes on in a file of its own beside those that are there."""
        with self.answering():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.job.id, "", ""

    def _run(self, name: str) -> Any:
        if name not in self._runs:
            self._runs[name] = self._writer(str(self.folder / name))
        return self._runs[name]

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write them as tables, on the page of texts."""
        with self.answering():
            for title, rows in (("parameters", parameters), ("job", tags)):
                self._add_text(title, rows)
            self._flush()

    def _add_text(self, title: str, rows: Mapping[str, str]) -> None:
        from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2, types_pb2

        escaped = {name: value.replace("|", "\\|").replace("\n", " ") for name, value in rows.items()}
        table = "\n".join(["|name|value|", "|---|---|", *(f"|{name}|{value}|" for name, value in escaped.items())])
        shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[table.encode()], tensor_shape=shape)
        data = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        value = self._summary.Summary.Value(
            tag=f"{title}/text_summary", metadata=self._summary.SummaryMetadata(plugin_data=data), tensor=tensor
        )
        self._run(_MEAN).add_event(
            self._event(wall_time=self.job.created, step=0, summary=self._summary.Summary(value=[value]))
        )

    def write(self, points: Sequence[Point]) -> None:
        """Write them with their own times."""
        with self.answering():
            for one in points:
                value = self._summary.Summary.Value(tag=one.name, simple_value=one.value)
                run = _MEAN if one.rank is None else f"rank_{one.rank}"
                self._run(run).add_event(
                    self._event(wall_time=one.t, step=round(one.step), summary=self._summary.Summary(value=[value]))
                )
            self._flush()

    def _flush(self) -> None:
        for run in self._runs.values():
            run.flush()

    def close(self, state: State | None, ended: float | None = None) -> None:
        """Close the files."""
        with self.answering():
            for run in self._runs.values():
                run.close()
        self._runs.clear()


#: The run of TensorBoard that has the means and the machines.
_MEAN = "mean"


# Weights & Biases -----------------------------------------------------------------------------


class WandB(Tracker):
    """A run of Weights & Biases, whose id is the job's; offline it is a folder for ``wandb sync``."""

    name = "wandb"

    def __init__(self, job: TrackedJob, settings: MonitoringSettings) -> None:
        super().__init__(job, settings)
        self._is_offline = settings.wandb == "offline" or os.environ.get("WANDB_MODE") == "offline"
        # Offline there is nothing that could be asked for what it has: a new folder has all of it.
        self.begins_anew = self._is_offline
        for name, below in (("WANDB_DATA_DIR", "data"), ("WANDB_CACHE_DIR", "cache")):
            os.environ.setdefault(name, str(self.folder / below))
        try:
            import wandb
        except ImportError:
            raise missing(self.name) from None
        self._wandb: Any = wandb
        self._run: Any = None

    @property
    def place(self) -> str:
        """The folder of an offline run, else the server's host."""
        return str(self.folder) if self._is_offline else host_of(os.environ.get("WANDB_BASE_URL", "https://wandb.ai"))

    def open(self, record: TrackerRecord) -> tuple[str, str, str]:
        """Begin or resume the run."""
        with self.answering():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_offline:
                for earlier in self.folder.glob(f"wandb/offline-run-*-{self.job.id}"):
                    shutil.rmtree(earlier)
            elif not (os.environ.get("WANDB_API_KEY") or self._wandb.api.api_key):
                raise CannotTrack(tracking.NO_KEY)
            quiet = self._wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
                x_disable_machine_info=True, init_timeout=_TIMEOUT,
            )  # fmt: skip
            self._run = self._wandb.init(
                project=self.settings.wandb_project, id=self.job.id, name=self.job.name, group=self.job.group or None,
                dir=str(self.folder), mode="offline" if self._is_offline else "online", settings=quiet,
                resume=None if self._is_offline else "allow",
            )  # fmt: skip
            # Steps may go back, after a restart of the ranks; those of W&B itself may not.
            self._run.define_metric("step", hidden=True)
            self._run.define_metric("*", step_metric="step")
        return self.job.id, self.settings.wandb_project, "" if self._is_offline else str(self._run.url or "")

    def describe(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Write both as the run's configuration."""
        with self.answering():
            self._run.config.update({**parameters, **tags}, allow_val_change=True)

    def write(self, points: Sequence[Point]) -> None:
        """Write one row for the points of one step and time."""
        rows: dict[tuple[float, float], dict[str, float]] = {}
        for one in points:
            rows.setdefault((one.step, one.t), {})[curve(one)] = one.value
        with self.answering():
            for (step, t), values in rows.items():
                self._run.log({"step": step, "_timestamp": t, **values})

    def keep(self, folder: Path, files: Sequence[Path]) -> None:
        """Keep them as one artefact."""
        if not files:
            return
        with self.answering():
            artifact = self._wandb.Artifact(f"outputs-{self.job.id}", type="outputs")
            for file in files:
                artifact.add_file(str(file), name=str(file.relative_to(folder)), policy="immutable")
            self._run.log_artifact(artifact)

    def close(self, state: State | None, ended: float | None = None) -> None:
        """Finish the run; W&B itself sends what it has."""
        if self._run is not None:
            with self.answering():
                self._run.finish(exit_code=0 if state in (None, State.COMPLETED) else 1)


KINDS: dict[str, type[Tracker]] = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB}

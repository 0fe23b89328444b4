"""Experiment trackers: their names, as ``track`` accepts them, the user's settings, their progress in a job's folder.

The settings are also those of messages and telemetry. The address for messages and that of a tracking server are
secrets. Keys and connection strings of telemetry stay in the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.user_settings import SettingsFile

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.spec import JobSpec

#: By name, as people know them.
TITLES = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}
#: Disables tracking for one job, if the user's settings name trackers.
OFF = "off"
#: The names of ``%dist_config monitoring`` and ``%dist_config tracking``.
MONITORING = ("enabled", "address", "notify")
TRACKING = ("track", "mlflow", "artifacts")
#: Events that send a message, as ``core.alerts.Kind``.
KINDS = "end,failure,stall,nan,rule"


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings by their names.

    ``enabled`` exports ended jobs to OpenTelemetry, ``address`` names the service for messages, ``notify`` the events
    that send one, ``track`` the trackers of jobs that set none, ``mlflow`` the address of MLflow.
    """

    enabled: bool = False
    address: str = ""
    notify: Annotated[str, msgspec.Meta(pattern=f"^(({KINDS.replace(',', '|')})(,(?=.)|$))+$")] = KINDS
    track: str = ""
    mlflow: Annotated[str, msgspec.Meta(pattern=r"^\S*$")] = ""
    artifacts: Literal["outputs", "all", "none"] = "outputs"


SETTINGS = SettingsFile(
    name="distdl_monitoring.json",
    type=Settings,
    allowed={
        "enabled": "true or false",
        "notify": f"some of {KINDS}",
        "mlflow": "an address without spaces, for example https://tracking.example or sqlite:////home/me/mlflow.db",
        "artifacts": "outputs, all or none",
    },
    secrets="Keys, tokens and destinations of telemetry are set in the environment of Jupyter.",
)


def change(names: Sequence[str] = (*MONITORING, *TRACKING), /, **changes: Any) -> Settings:
    """Change some settings of ``names`` and return them all; an empty value restores a default. Raises InvalidSpec.

    An ``address`` is not checked here: ``tracking.messages.configure`` does.
    """
    if "track" in changes:
        changes["track"] = check(changes["track"], "track")
    if "notify" in changes:
        changes["notify"] = str(changes["notify"] or "").replace(" ", "")
    return SETTINGS.write(SETTINGS.changed(changes, "monitoring" if names == MONITORING else "tracking", names))


def check(value: Any, field: str) -> str | None:
    """Return trackers as a text, separated by commas; None for "as the settings say". Raises InvalidSpec."""
    items = value.split(",") if isinstance(value, str) else value or ()
    trackers = tuple(dict.fromkeys(str(item).strip().lower() for item in items if str(item).strip()))
    if any(name not in (*TITLES, OFF) for name in trackers) or (OFF in trackers and len(trackers) > 1):
        raise InvalidSpec(
            f"{field} must be one of {', '.join(TITLES)}, several of them, or {OFF}, not {value!r}.",
            code="tracker-unknown",
            field=field,
        )
    return ",".join(trackers) or None


def names(text: str) -> tuple[str, ...]:
    """Return the trackers in a checked text."""
    return tuple(name for name in text.split(",") if name and name != OFF)


def of_spec(spec: JobSpec) -> tuple[str, ...]:
    """Return the trackers of a job: its own, else those of the settings; runs of a scaling study have none."""
    if spec.track or spec.check or (spec.group is not None and spec.group.kind == "scale"):
        return names(spec.track or "")
    try:
        return names(SETTINGS.read().track)
    except DistDLError:  # reported when the job has ended
        return ()


def shown(text: str) -> str:
    """Return the trackers in a checked text as people know them."""
    return ", ".join(TITLES[name] for name in names(text)) or OFF


class TrackerRecord(msgspec.Struct, frozen=True):
    """Progress of one tracker with a job, in ``tracking/TRACKER.json`` of the job's folder, without secrets.

    ``run`` is the run's id and ``place`` where it is; ``url`` is a page of the run, or "". ``events`` are the bytes of
    events that were written. ``trouble`` is a sentence about what prevents progress, and ``done`` means that the whole
    job was written.
    """

    tracker: str
    run: str = ""
    experiment: str = ""
    place: str = ""
    url: str = ""
    events: int = 0
    trouble: str = ""
    done: bool = False

    @property
    def title(self) -> str:
        """The tracker's name for people."""
        return TITLES[self.tracker]

    def __str__(self) -> str:
        """Return it in words: ``MLflow: run 4f2a at tracking.example, complete``."""
        state = self.trouble or ("complete" if self.done else "being written")
        return f"{self.title}: run {self.run} at {self.place}, {state}" if self.run else f"{self.title}: {state}"

    def write(self, job: Path) -> None:
        """Store it in a job's folder. Raises OSError, also if the folder is gone."""
        atomic_write.keep(folder_of(job) / f"{self.tracker}.json", msgspec.json.encode(self))


def folder_of(job: Path, tracker: str = "") -> Path:
    """Return the folder of records in a job's folder, or of what a tracker stores beside them."""
    return job / "tracking" / tracker


def read(job: Path, tracker: str) -> TrackerRecord:
    """Return the record of a tracker in a job's folder, an empty one if there is none."""
    try:
        return msgspec.json.decode((folder_of(job) / f"{tracker}.json").read_bytes(), type=TrackerRecord)
    except (OSError, ValueError):
        return TrackerRecord(tracker)


def of_job(job: Path) -> list[TrackerRecord]:
    """Return the records of all trackers of a job."""
    return [read(job, name) for name in TITLES if (folder_of(job) / f"{name}.json").exists()]

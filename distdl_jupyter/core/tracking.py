"""Names of experiment trackers, as the option ``track`` accepts them, and their progress in a job's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core import files
from distdl_jupyter.core.errors import InvalidSpec

#: Display names.
TITLES = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}
#: Disables tracking for one job if the user's settings name trackers.
OFF = "off"


def check_trackers(value: Any, field: str) -> str | None:
    """Return the trackers as comma-separated text; None for the settings' default. Raises InvalidSpec."""
    items = value.split(",") if isinstance(value, str) else value or ()
    trackers = tuple(dict.fromkeys(str(item).strip().lower() for item in items if str(item).strip()))
    if any(name not in (*TITLES, OFF) for name in trackers) or (OFF in trackers and len(trackers) > 1):
        message = f"{field} must be one of {', '.join(TITLES)}, several of them, or {OFF}, not {value!r}."
        raise InvalidSpec(message, code="tracker-unknown", field=field)
    return ",".join(trackers) or None


def split_names(text: str) -> tuple[str, ...]:
    """Return the trackers in a checked text."""
    return tuple(name for name in text.split(",") if name and name != OFF)


def format_titles(text: str) -> str:
    """Return the display names of the trackers in a checked text."""
    return ", ".join(TITLES[name] for name in split_names(text)) or OFF


class TrackerRecord(msgspec.Struct, frozen=True):
    """Progress of one tracker with a job, in ``tracking/TRACKER.json`` of the job's folder, without secrets.

    ``run`` is the run's id, ``location`` where it is stored, ``url`` its page or "". ``events`` is the number of
    written bytes of events. ``trouble`` prevents progress. ``done`` means that the whole job was written.
    """

    tracker: str
    run: str = ""
    experiment: str = ""
    location: str = ""
    url: str = ""
    events: int = 0
    trouble: str = ""
    done: bool = False

    def __str__(self) -> str:
        """Return the text ``MLflow: run 4f2a at tracking.example, complete``."""
        state = self.trouble or ("complete" if self.done else "being written")
        run = f"run {self.run} at {self.location}, " if self.run else ""
        return f"{TITLES[self.tracker]}: {run}{state}"

    def write(self, job: Path) -> None:
        """Store the record in a job's folder. Raises OSError, also if the folder was deleted."""
        files.replace_file(get_folder(job) / f"{self.tracker}.json", msgspec.json.encode(self))


def get_folder(job: Path, tracker: str = "") -> Path:
    """Return the folder of a job's tracker records, or the folder for other files of ``tracker``."""
    return job / "tracking" / tracker


def read_record(job: Path, tracker: str) -> TrackerRecord:
    """Return the record of a tracker in a job's folder, or an empty record if there is none."""
    try:
        return msgspec.json.decode((get_folder(job) / f"{tracker}.json").read_bytes(), type=TrackerRecord)
    except (OSError, ValueError):
        return TrackerRecord(tracker)


def read_records(job: Path) -> list[TrackerRecord]:
    """Return the records of all trackers of a job."""
    return [read_record(job, name) for name in TITLES if (get_folder(job) / f"{name}.json").exists()]

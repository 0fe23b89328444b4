"""Experiment trackers of a job: which there are, and how far each has come, as the job's folder keeps it.

``tracking/<tracker>.json`` is written by that tracker's one process (``monitoring.tracking``), which follows the events
beside the supervisor; ``tracking/<tracker>.lock`` is held by it. No secret stands there: of an address only the host.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.errors import InvalidSpec

if TYPE_CHECKING:
    from pathlib import Path

#: By name, as people know them.
TITLES = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}
#: The word for none, where the user's settings name some.
OFF = "off"
FOLDER = "tracking"


def check(value: Any, field: str) -> str | None:
    """Return trackers as a text, separated by commas; None for "as the settings say". Raises InvalidSpec."""
    words = value.split(",") if isinstance(value, str) else value or ()
    found = tuple(dict.fromkeys(str(word).strip().lower() for word in words if str(word).strip()))
    if any(word not in (*TITLES, OFF) for word in found) or (OFF in found and len(found) > 1):
        raise InvalidSpec(
            f"{field} must be one of {', '.join(TITLES)}, several of them, or {OFF}, not {value!r}.",
            code="tracker-unknown",
            field=field,
        )
    return ",".join(found) or None


def names(text: str) -> tuple[str, ...]:
    """Return the trackers in a checked text."""
    return tuple(word for word in text.split(",") if word and word != OFF)


def shown(text: str) -> str:
    """Return the trackers in a checked text as people know them."""
    return ", ".join(TITLES[name] for name in names(text)) or OFF


def folder_of(job: Path, tracker: str) -> Path:
    """Return where a tracker that keeps its run beside the job has it, in a job's folder."""
    return job / FOLDER / tracker


@dataclass(frozen=True, slots=True)
class TrackerRecord:
    """How far one tracker has come with a job.

    ``run`` is the run's id there and ``place`` where that is, in words without secrets; ``url`` a page of the run that
    a browser can open, "" where there is none. ``events`` are the bytes of the events that it has, ``samples`` the time
    of the last sample of resources, ``settled`` until when steps were written that some ranks had not reported
    (epoch seconds). ``trouble`` says in a sentence why it does not come further, ``done`` that it has all of the job.
    """

    tracker: str
    run: str = ""
    experiment: str = ""
    place: str = ""
    url: str = ""
    events: int = 0
    samples: float = 0.0
    settled: float = 0.0
    trouble: str = ""
    done: bool = False

    @property
    def title(self) -> str:
        """The tracker's name for people."""
        return TITLES[self.tracker]

    def __str__(self) -> str:
        """Return it in words: ``MLflow: run 4f2a at tracking.example, complete``."""
        where = f" at {self.place}" if self.place else ""
        state = self.trouble or ("complete" if self.done else "being written")
        return f"{self.title}: run {self.run}{where}, {state}" if self.run else f"{self.title}: {state}"

    def write(self, job: Path) -> None:
        """Keep it in a job's folder. Raises OSError, also when the folder is gone."""
        atomic_write.keep(job / FOLDER / f"{self.tracker}.json", json.dumps(dataclasses.asdict(self), indent=1))


def read(job: Path, tracker: str) -> TrackerRecord:
    """Return what is known of a tracker in a job's folder, an empty record where there is nothing."""
    try:
        found: dict[str, Any] = json.loads((job / FOLDER / f"{tracker}.json").read_text(encoding="utf-8"))
        known = {name: value for name, value in found.items() if name in TrackerRecord.__dataclass_fields__}
        return TrackerRecord(**{**known, "tracker": tracker})
    except (OSError, ValueError, TypeError, AttributeError):
        return TrackerRecord(tracker)


def of_job(job: Path) -> list[TrackerRecord]:
    """Return the records of all trackers that a job has."""
    return [read(job, name) for name in TITLES if (job / FOLDER / f"{name}.json").exists()]


# what is said ---------------------------------------------------------------------------------

NO_AZUREML = "Azure ML tracking needs a package: pip install azureml-mlflow"
NO_KEY = "Weights & Biases needs a key. Run wandb login, or set WANDB_API_KEY."


def missing(tracker: str) -> str:
    """Return what is said where a tracker's package is not installed."""
    return f"{TITLES[tracker]} needs a package: pip install 'distdl-jupyter[{tracker}]'"


def elsewhere(record: TrackerRecord, place: str) -> str:
    """Return what is said where the settings name another place than that of the job's run."""
    return f"The job's run in {record.title} is at {record.place}, but the settings now name {place}."


def recovered(record: TrackerRecord) -> str:
    """Return what is said of a tracker that is out of trouble."""
    return f"{record.title} is up to date again."


def trouble(title: str, place: str, error: BaseException) -> str:
    """Return why a tracker did not take something, without a word of the error but its status."""
    text = f"{error} {error.__cause__ or ''}"
    status = re.search(r"error code (\d{3})|\b(401|403|404|413|429|500|502|503)\b", text)
    code = next(filter(None, status.groups()), "") if status else ""
    kind = type(error.__cause__ or error).__name__
    if code in ("401", "403") or "UNAUTHENTICATED" in text or "PERMISSION_DENIED" in text:
        return f"{title} at {place} rejected the user name, password or token{f' ({code})' if code else ''}."
    if code:
        return f"{title} at {place} responded with {code}."
    if isinstance(error, OSError) or re.search(
        r"[Cc]onnection|[Tt]imed? ?out|Max retries|[Cc]ommError", f"{text} {kind}"
    ):
        return f"{title} at {place} cannot be reached."
    return f"{title} at {place} rejected the request ({kind})."

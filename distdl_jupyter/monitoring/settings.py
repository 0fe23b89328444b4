"""Who is told of jobs: a monitoring system when they have ended, a webhook when something happens, and trackers.

Kept in ``distdl_monitoring.json`` in the user's Jupyter configuration folder, which only the user may read. Where the
monitoring system is the environment says, as OpenTelemetry has it: a connection string or a header with a key stays
there, is neither kept nor shown here, and alone turns nothing on. Of a webhook's address, which lets anybody write
there, and of a tracking server's, which may hold a password, only the host is ever shown.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.core import atomic_write, tracking
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec

FILE = "distdl_monitoring.json"
#: What each exporter reads its destination from; the first is Application Insights, the others are OTLP's standard.
CONNECTION_STRING = "APPLICATIONINSIGHTS_CONNECTION_STRING"
ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)  # fmt: skip
#: What a message is sent for, as ``core.alerts.Kind``.
KINDS = ("end", "failure", "stall", "nan", "rule")
_ALL = ",".join(KINDS)
#: The names of ``%dist_config monitoring`` and ``%dist_config tracking``.
MONITORING = ("enabled", "webhook", "notify")
TRACKING = ("track", "mlflow", "experiment", "metrics", "artifacts", "wandb", "wandb_project")
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringSettings:
    """Settings by the names of ``%dist_config monitoring`` and ``%dist_config tracking``."""

    enabled: bool = field(
        default=False,
        metadata={
            "help": f"Send spans and metrics of ended jobs to Application Insights ({CONNECTION_STRING}) and to OTLP "
            f"({ENDPOINTS[0]}), as set in the environment."
        },
    )
    webhook: str = field(
        default="",
        metadata={"help": "Address of a webhook: Slack, Teams, ntfy (ntfy+https://HOST/TOPIC) or any JSON webhook."},
    )
    notify: str = field(default=_ALL, metadata={"help": f"Events that send a message: {', '.join(KINDS)}."})
    track: str = field(
        default="",
        metadata={"help": f"Trackers for jobs that set none: {', '.join(tracking.TITLES)}, or several."},
    )
    mlflow: str = field(
        default="",
        metadata={"help": "Address of the MLflow server or store (default: MLFLOW_TRACKING_URI, or a local store)."},
    )
    experiment: str = field(default="distdl_jupyter", metadata={"help": "Experiment for new MLflow runs."})
    metrics: str = field(
        default="mean", metadata={"help": "mean (over ranks), ranks (a curve for each rank), or both."}
    )
    artifacts: str = field(
        default="outputs",
        metadata={"help": "Files to store with a run: outputs (without checkpoints), all, or none."},
    )
    wandb: str = field(
        default="online", metadata={"help": "online, or offline: runs are stored in the job's folder for wandb sync."}
    )
    wandb_project: str = field(default="distdl_jupyter", metadata={"help": "Project for W&B runs."})

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the webhook is sent for."""
        return tuple(word for word in self.notify.replace(" ", "").split(",") if word)


_DEFAULTS = dataclasses.asdict(MonitoringSettings())


def file() -> Path:
    """Return where the settings are kept."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / FILE


def read() -> MonitoringSettings:
    """Return the settings, defaults where there is no file. Raises DistDLError when it is broken."""
    try:
        kept = json.loads(file().read_text(encoding="utf-8"))
        words = {name: str(kept.get(name) or default) for name, default in _DEFAULTS.items() if name != "enabled"}
        return MonitoringSettings(enabled=kept.get("enabled") is True, **words)
    except FileNotFoundError:
        return MonitoringSettings()
    except (OSError, ValueError, AttributeError) as error:
        raise DistDLError(
            f"Cannot read the settings in {file()} ({type(error).__name__}).",
            code="settings-unreadable",
            hint="Correct or delete that file.",
        ) from None


def change(names: Sequence[str] = (*MONITORING, *TRACKING), /, **given: Any) -> MonitoringSettings:
    """Set some settings, all of ``names``, and return them all; an empty value goes back to the default.

    Raises InvalidSpec.
    """
    for name in given:
        if name not in names:
            what, hint = ("tracking", "Set tokens in the environment of Jupyter.") if "track" in names else (
                "monitoring", "Set the destination in the environment of Jupyter.")  # fmt: skip
            raise InvalidSpec(
                unknown(name, names, "setting", f"for {what}"), code="setting-unknown", field=name, hint=hint
            )
    changes = {name: _CHECKS[name](name, value) for name, value in given.items()}
    settings = dataclasses.replace(read(), **changes)
    kept = {name: value for name, value in dataclasses.asdict(settings).items() if value != _DEFAULTS[name]}
    atomic_write.write(file(), kept)
    return settings


def destinations(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the variables that say where to send, in the environment or in ``os.environ``."""
    known = os.environ if environment is None else environment
    return [name for name in (CONNECTION_STRING, *ENDPOINTS) if known.get(name)]


def _flag(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_YES, *_NO):
        raise InvalidSpec(f"{name} is {value!r}, but must be true or false.", code="setting-not-a-boolean", field=name)
    return text in _YES


def _address(_name: str, value: Any) -> str:
    from distdl_jupyter.monitoring import webhook

    if value:
        webhook.check_address(str(value))
    return str(value or "")


def _trackers(name: str, value: Any) -> str:
    return tracking.check(value, name) or ""


def _place(name: str, value: Any) -> str:
    if any(letter.isspace() for letter in str(value)):
        raise InvalidSpec(
            f"{name} must be an address without spaces.",
            code="setting-not-an-address",
            field=name,
            hint="Examples: https://tracking.example or sqlite:////home/me/mlflow.db.",
        )
    return str(value or "")


def _word(*words: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value and value not in words:
            raise InvalidSpec(
                unknown(str(value), words, "value", f"of {name}"), code="setting-value-unknown", field=name
            )
        return str(value or words[0])

    return check


def _text(name: str, value: Any) -> str:
    return str(value or _DEFAULTS[name])


def _kinds(name: str, value: Any) -> str:
    words = [word.strip() for word in str(value or "").split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            raise InvalidSpec(
                unknown(word, KINDS, "thing to be notified of"), code="notification-kind-unknown", field=name
            )
    return ",".join(words) or _ALL


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "enabled": _flag, "webhook": _address, "notify": _kinds, "track": _trackers, "mlflow": _place, "experiment": _text,
    "metrics": _word("mean", "ranks", "both"), "artifacts": _word("outputs", "all", "none"),
    "wandb": _word("online", "offline"), "wandb_project": _text,
}  # fmt: skip

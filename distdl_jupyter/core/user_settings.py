"""The settings of a user: JSON files in Jupyter's configuration folder that only the user can read.

The addresses of the message service and of the tracking server are secrets. Keys for telemetry stay in the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from distdl_jupyter.core import files, tracking
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.options import describe_unknown
from distdl_jupyter.core.spec import JobSpec

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class SettingsFile(Generic[S]):
    """The file ``name`` with a struct whose fields have defaults; ``allowed_values`` describes their valid values."""

    name: str
    type: type[S]
    allowed_values: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The path of the file."""
        from jupyter_core.paths import jupyter_config_dir

        return Path(jupyter_config_dir()) / self.name

    def read(self) -> S:
        """Return the settings, or the defaults if there is no file. Raises DistDLError if the file is invalid."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self.type)
        except FileNotFoundError:
            return self.type()
        except (OSError, ValueError) as error:
            message = f"Cannot read the settings in {self.path} ({type(error).__name__}). Correct or delete that file."
            raise DistDLError(message, code="settings-unreadable") from None

    def change(self, changes: Mapping[str, Any], subject: str, names: Sequence[str] = ()) -> S:
        """Return settings with ``changes`` of ``names`` (default: all); "" restores a default. Raises InvalidSpec."""
        names = names or self.type.__struct_fields__
        if unknown := [name for name in changes if name not in names]:
            message = describe_unknown(unknown[0], names, "setting", f"for {subject}")
            raise InvalidSpec(message, code="setting-unknown", field=unknown[0])
        values = msgspec.to_builtins(self.read()) | {name: str(value or "").strip() for name, value in changes.items()}
        try:
            return msgspec.convert({name: value for name, value in values.items() if value}, self.type, strict=False)
        except msgspec.ValidationError as error:
            name = str(error).rpartition(".")[2].rstrip("`")
            message = f"The value of {name} must be {self.allowed_values[name]}."
            raise InvalidSpec(message, code="setting-invalid", field=name) from None

    def write(self, settings: S) -> S:
        """Store settings and return them."""
        files.write_json(self.path, msgspec.to_builtins(settings))
        return settings


#: Events that send a message, as in ``core.alerts.Alert``.
ALERT_KINDS = "end,failure,stall,nan,rule"


class ReportingSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of reports to other programs.

    ``enabled`` exports ended jobs to OpenTelemetry. ``address`` is the service for messages, ``notify`` the events
    that send one, ``track`` the trackers of jobs that set none, ``mlflow`` the address of MLflow.
    """

    enabled: bool = False
    address: str = ""
    notify: Annotated[str, msgspec.Meta(pattern=f"^(({ALERT_KINDS.replace(',', '|')})(,(?=.)|$))+$")] = ALERT_KINDS
    track: str = ""
    mlflow: Annotated[str, msgspec.Meta(pattern=r"^\S*$")] = ""
    artifacts: Literal["outputs", "all", "none"] = "outputs"


_ALLOWED_VALUES = {
    "enabled": "true or false",
    "notify": f"some of {ALERT_KINDS}",
    "mlflow": "an address without spaces, for example https://tracking.example or sqlite:////home/me/mlflow.db",
    "artifacts": "outputs, all or none",
}
SETTINGS = SettingsFile("distdl_monitoring.json", ReportingSettings, _ALLOWED_VALUES)
#: The settings that each topic of ``%dist_config`` changes.
_TOPICS = {"monitoring": ("enabled", "address", "notify"), "tracking": ("track", "mlflow", "artifacts")}


def change_settings(topic: str = "", /, **changes: Any) -> ReportingSettings:
    """Change settings of a topic (default: any) and return all; "" restores a default. Raises InvalidSpec."""
    if "track" in changes:
        changes["track"] = tracking.check_trackers(changes["track"], "track")
    if "notify" in changes:
        changes["notify"] = str(changes["notify"] or "").replace(" ", "")
    settings = SETTINGS.change(changes, topic, _TOPICS.get(topic, ()))
    return SETTINGS.write(settings) if changes else settings


def get_trackers(spec: JobSpec) -> tuple[str, ...]:
    """Return the trackers of a job, by default those of the settings; checks and scaling studies have no default."""
    text = spec.track
    if not (text or spec.check or (spec.group is not None and spec.group.kind == "scale")):
        with contextlib.suppress(DistDLError):  # reported when the job has ended
            text = SETTINGS.read().track
    return tracking.split_names(text)

"""The user's settings of reports to other programs: messages, telemetry and experiment trackers.

The address for messages and that of a tracking server are secrets. Keys and connection strings of telemetry stay in the
environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from distdl_jupyter.core import tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.user_settings import SettingsFile

#: The names of ``%dist_config monitoring`` and ``%dist_config tracking``.
MONITORING = ("enabled", "address", "notify")
TRACKING = ("track", "mlflow", "artifacts")
#: Events that send a message, as ``core.alerts.Kind``.
KINDS = "end,failure,stall,nan,rule"


class ReportingSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings by their names.

    ``enabled`` exports ended jobs to OpenTelemetry, ``address`` is the service for messages, ``notify`` the events
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
    type=ReportingSettings,
    allowed={
        "enabled": "true or false",
        "notify": f"some of {KINDS}",
        "mlflow": "an address without spaces, for example https://tracking.example or sqlite:////home/me/mlflow.db",
        "artifacts": "outputs, all or none",
    },
    secrets="Keys, tokens and destinations of telemetry are set in the environment of Jupyter.",
)


def change(names: Sequence[str] = (*MONITORING, *TRACKING), /, **changes: Any) -> ReportingSettings:
    """Change settings of ``names``, if any are given, and return all; an empty value restores a default.

    Raises InvalidSpec. An ``address`` is not checked here: ``tracking.messages.configure`` does.
    """
    if not changes:
        return SETTINGS.read()
    if "track" in changes:
        changes["track"] = tracking.check(changes["track"], "track")
    if "notify" in changes:
        changes["notify"] = str(changes["notify"] or "").replace(" ", "")
    return SETTINGS.write(SETTINGS.changed(changes, "monitoring" if names == MONITORING else "tracking", names))


def trackers_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the trackers of a job: its own, else those of the settings; runs of a scaling study have none."""
    if spec.track or spec.check or (spec.group is not None and spec.group.kind == "scale"):
        return tracking.names(spec.track or "")
    try:
        return tracking.names(SETTINGS.read().track)
    except DistDLError:  # reported when the job has ended
        return ()

"""Who is told of jobs: a monitoring system when they have ended, and a webhook when something happens.

Kept in ``distdl_monitoring.json`` in the user's Jupyter configuration folder, which only the user may read. Where the
monitoring system is the environment says, as OpenTelemetry has it: a connection string or a header with a key stays
there, is neither kept nor shown here, and alone turns nothing on. Of a webhook's address, which lets anybody write
there, only the host is ever shown.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.core import atomic_write
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
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringSettings:
    """Settings by the names of ``%dist_config monitoring``."""

    enabled: bool = field(
        default=False,
        metadata={
            "help": f"Send spans and metrics of ended jobs to Application Insights ({CONNECTION_STRING}) and to OTLP "
            f"({ENDPOINTS[0]}), whichever the environment names."
        },
    )
    webhook: str = field(
        default="",
        metadata={"help": "Address of Slack, Teams, ntfy (ntfy+https://HOST/TOPIC) or any other that takes JSON."},
    )
    notify: str = field(default=_ALL, metadata={"help": f"What the webhook is sent for: {', '.join(KINDS)}."})

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
        return MonitoringSettings(
            enabled=kept.get("enabled") is True,
            webhook=str(kept.get("webhook") or ""),
            notify=str(kept.get("notify") or _ALL),
        )
    except FileNotFoundError:
        return MonitoringSettings()
    except (OSError, ValueError, AttributeError) as error:
        raise DistDLError(f"The settings for monitoring in {file()} cannot be read ({type(error).__name__}).",
                          hint="Mend or delete that file.") from None  # fmt: skip


def change(**given: Any) -> MonitoringSettings:
    """Set some settings and return them all; an empty value goes back to the default. Raises InvalidSpec."""
    names = [one.name for one in dataclasses.fields(MonitoringSettings)]
    for name in given:
        if name not in names:
            raise InvalidSpec(unknown(name, names, "setting for monitoring"), field=name,
                              hint="Where to send is said by the environment of Jupyter.")  # fmt: skip
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
        raise InvalidSpec(f"{name} is {value!r}, but it takes true or false.", field=name)
    return text in _YES


def _address(_name: str, value: Any) -> str:
    from distdl_jupyter.monitoring import webhook

    if value:
        webhook.check_address(str(value))
    return str(value or "")


def _kinds(name: str, value: Any) -> str:
    words = [word.strip() for word in str(value or "").split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            raise InvalidSpec(unknown(word, KINDS, "thing to be notified of"), field=name)
    return ",".join(words) or _ALL


_CHECKS: dict[str, Callable[[str, Any], Any]] = {"enabled": _flag, "webhook": _address, "notify": _kinds}

"""Whether jobs start warm, and how long an unused template stays: the user's settings for all kernels."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.warm import template_files

_OFF = ("off", "0", "no", "false")


@dataclass(frozen=True, slots=True)
class Settings:
    """``idle_minutes`` is how long a template stays after its last job."""

    enabled: bool = True
    idle_minutes: float = 30.0


def read() -> Settings:
    """Return the settings; a file that cannot be read counts as none."""
    try:
        data = json.loads((template_files.folder() / "settings.json").read_text(encoding="utf-8"))
        return Settings(bool(data["enabled"]), float(data["idle_minutes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Settings()


def change(*, enabled: bool | None = None, idle_minutes: float | None = None) -> Settings:
    """Change what is given, keep it for all kernels and return the settings. Raises InvalidSpec, OSError."""
    own = read()
    if idle_minutes is not None and not 0 < idle_minutes <= 60 * 24 * 7:
        raise InvalidSpec(
            f"idle_minutes is {idle_minutes:g}, but must be more than 0 and at most 10080 (one week).",
            code="warm-idle-minutes-range",
            field="idle_minutes",
        )
    own = replace(
        own,
        enabled=own.enabled if enabled is None else enabled,
        idle_minutes=own.idle_minutes if idle_minutes is None else float(idle_minutes),
    )
    atomic_write.write(template_files.folder() / "settings.json", asdict(own))
    return own


def take(words: Mapping[str, str]) -> Settings:
    """Change what ``on``, ``off`` or ``idle_minutes=M`` say. Raises InvalidSpec for anything else."""
    unknown = sorted(set(words) - {"on", "off", "idle_minutes"})
    if unknown or {"on", "off"} <= set(words):
        raise InvalidSpec(
            f"Unknown setting {unknown[0]!r} for warm starts." if unknown else "Warm starts cannot be both on and off.",
            code="warm-setting-unknown",
            field=unknown[0] if unknown else "warm",
            hint="Use on, off or idle_minutes=30.",
        )
    minutes = words.get("idle_minutes")
    try:
        wanted = None if minutes is None else float(minutes)
    except ValueError:
        raise InvalidSpec(
            f"idle_minutes is {minutes!r}, but must be a number.",
            code="warm-idle-minutes-invalid",
            field="idle_minutes",
        ) from None
    enabled = True if "on" in words else False if "off" in words else None
    return change(enabled=enabled, idle_minutes=wanted) if words else read()


def switched_off() -> str:
    """Return by what warm starts are switched off ("DISTDL_WARM" or "the settings"), "" when they are on."""
    if os.environ.get("DISTDL_WARM", "").lower() in _OFF:
        return "DISTDL_WARM"
    return "" if read().enabled else "the settings"

"""Reports the state of warm starts to users, as lines of text and as a row of ``distdl doctor``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import psutil

from distdl_jupyter.core.humanize import ago, listing, plural, size
from distdl_jupyter.environment.doctor import Verdict
from distdl_jupyter.warm import preload, start, template_files

#: How to enable warm starts, by the setting that has disabled them.
_REMEDIES = {
    "DISTDL_WARM": "To switch them on, unset DISTDL_WARM.",
    "the settings": "To switch them on, run %dist_config warm on, or `distdl warm on`.",
}


def lines() -> list[str]:
    """Return the state of warm starts for this Python, one fact per line."""
    files, disabled_by = template_files.of(), template_files.switched_off()
    minutes = template_files.read_settings().idle_minutes
    lines = [f"Warm starts are on. An unused template ends after {minutes:g} minutes."]
    if disabled_by:
        lines = [f"Warm starts are switched off by {disabled_by}. {_REMEDIES[disabled_by]}"]
    if (status := start.status(files)) is not None:
        since = ago(max(0.0, time.time() - status["since"]))
        lines += [
            f"The template for {files.python} was started {since} (pid {status['pid']}).",
            f"It has {_describe_modules(status)}.",
            f"It has started {plural(status['jobs'], 'job')} ({status['running']} running).",
        ]
    elif start.is_being_made(files):
        lines.append(f"A template for {files.python} is being prepared.")
    elif not disabled_by:
        text = f"No template is running for {files.python}. The next job starts one; to start one now, run"
        lines.append(f"{text} `distdl warm start`.")
    by_reason: dict[str, list[str]] = {}
    for name, reason in preload.ImportHistory(files.history).unforkable.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        more = f" (and {len(names) - 1} more)" if names[1:] else ""
        lines.append(f"{names[0]}{more} is not preloaded, because it {reason}.")
    return lines


def state() -> dict[str, Any]:
    """Return the same facts as data: what has disabled warm starts ("" if enabled), and the template."""
    files = template_files.of()
    return {
        "switched_off": template_files.switched_off(),
        "idle_minutes": template_files.read_settings().idle_minutes,
        "template": start.status(files),
        "being_made": start.is_being_made(files),
    }


def rows() -> list[Verdict]:
    """Return the row of ``distdl doctor``."""
    if disabled_by := template_files.switched_off():
        return [Verdict("Warm starts", "absent", f"off ({disabled_by})", _REMEDIES[disabled_by])]
    files = template_files.of()
    if (status := start.status(files)) is not None:
        text = f"a template has {_describe_modules(status)}; it started {plural(status['jobs'], 'job')}"
    else:
        text = "a template is being prepared" if start.is_being_made(files) else "no template is running"
    return [Verdict("Warm starts", "ok", f"on; {text}")]


def _describe_modules(status: Mapping[str, Any]) -> str:
    """Return the modules that a template has loaded and its memory (proportional and total) as text."""
    loaded = f"loaded {plural(status['modules'], 'module')} ({listing(status['loads']) or 'no framework'})"
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(status["pid"]).memory_full_info()
        loaded += f" and uses {size(memory.pss)} of memory ({size(memory.rss)} with shared pages)"
    return loaded

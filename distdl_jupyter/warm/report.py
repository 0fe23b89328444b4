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
from distdl_jupyter.warm.template_files import TemplateFiles

#: How to enable warm starts, by the setting that has disabled them.
_REMEDIES = {
    "DISTDL_WARM": "To switch them on, unset DISTDL_WARM.",
    "the settings": "To switch them on, run %dist_config warm on, or `distdl warm on`.",
}


def lines() -> list[str]:
    """Return the state of warm starts for this Python, one fact per line."""
    files = template_files.of()
    off = template_files.switched_off()
    if off:
        first = f"Warm starts are switched off by {off}. {_REMEDIES[off]}"
    else:
        minutes = template_files.read_settings().idle_minutes
        first = f"Warm starts are on. An unused template ends after {minutes:g} minutes."
    return [first, *_template(files, off), *_unforkable(files)]


def state() -> dict[str, Any]:
    """Return the same facts as data: what has disabled warm starts ("" if enabled), and the template."""
    files = template_files.of()
    return {
        "switched_off": template_files.switched_off(),
        "idle_minutes": template_files.read_settings().idle_minutes,
        "template": start.status(files),
        "being_made": start.is_being_made(files),
    }


def _template(files: TemplateFiles, off: str) -> list[str]:
    status = start.status(files)
    if status is not None:
        since = ago(max(0.0, time.time() - status["since"]))
        return [
            f"The template for {files.python} was started {since} (pid {status['pid']}).",
            f"It has {_loaded(status)}.",
            f"It has started {plural(status['jobs'], 'job')} ({status['running']} running).",
        ]
    if start.is_being_made(files):
        return [f"A template for {files.python} is being prepared."]
    text = f"No template is running for {files.python}. The next job starts one; to start one now, run"
    return [] if off else [f"{text} `distdl warm start`."]


def _loaded(status: Mapping[str, Any]) -> str:
    """Return the modules that a template has loaded and its memory (proportional and total) as text."""
    loaded = f"loaded {plural(status['modules'], 'module')} ({listing(status['loads']) or 'no framework'})"
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(status["pid"]).memory_full_info()
        loaded += f" and uses {size(memory.pss)} of memory ({size(memory.rss)} with shared pages)"
    return loaded


def _unforkable(files: TemplateFiles) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, why in preload.ImportHistory(files.history).unforkable.items():
        by_reason.setdefault(why, []).append(name)
    first = {why: names[0] + (f" (and {len(names) - 1} more)" if names[1:] else "") for why, names in by_reason.items()}
    return [f"{name} is not preloaded, because it {why}." for why, name in first.items()]


def rows() -> list[Verdict]:
    """Return the row of ``distdl doctor``."""
    if off := template_files.switched_off():
        return [Verdict("Warm starts", "absent", f"off ({off})", _REMEDIES[off])]
    files = template_files.of()
    status = start.status(files)
    if status is None:
        state = "a template is being prepared" if start.is_being_made(files) else "no template is running"
        return [Verdict("Warm starts", "ok", f"on; {state}")]
    return [
        Verdict(
            "Warm starts", "ok", f"on; a template has {_loaded(status)}; it started {plural(status['jobs'], 'job')}"
        )
    ]

"""Reports the state of warm starts to users, as lines of text and as a row of ``distdl doctor``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import psutil

from distdl_jupyter.core.humanize import ago, listing, plural, size
from distdl_jupyter.environment.doctor import Verdict
from distdl_jupyter.warm import preload, start

#: How to enable warm starts, by the setting that has disabled them.
_REMEDIES = {
    "DISTDL_WARM": "To switch them on, unset DISTDL_WARM.",
    "the settings": "To switch them on, run %dist_config warm on, or `distdl warm on`.",
}


def read_state() -> dict[str, Any]:
    """Return the state of warm starts: what has disabled them ("" if they are enabled), and the template."""
    files = start.files_of()
    return {
        "switched_off": start.find_disabling_setting(),
        "idle_minutes": start.read_settings().idle_minutes,
        "template": start.status(files),
        "is_preparing": start.has_template(files),
    }


def describe() -> list[str]:
    """Return the state of warm starts for this Python, one fact per line."""
    files, facts = start.files_of(), read_state()
    disabled_by, template = facts["switched_off"], facts["template"]
    lines = [f"Warm starts are on. An unused template ends after {facts['idle_minutes']:g} minutes."]
    if disabled_by:
        lines = [f"Warm starts are switched off by {disabled_by}. {_REMEDIES[disabled_by]}"]
    if template is not None:
        since = ago(max(0.0, time.time() - template["since"]))
        lines += [
            f"The template for {files.python} was started {since} (pid {template['pid']}).",
            f"It has {_describe_modules(template)}.",
            f"It has started {plural(template['jobs'], 'job')} ({template['running']} running).",
        ]
    elif facts["is_preparing"]:
        lines.append(f"A template for {files.python} is being prepared.")
    elif not disabled_by:
        text = f"No template is running for {files.python}. The next job starts one; to start one now, run"
        lines.append(f"{text} `distdl warm start`.")
    by_reason: dict[str, list[str]] = {}
    for name, reason in preload.ImportHistory(files.history).unforkable.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        suffix = f" (and {len(names) - 1} more)" if names[1:] else ""
        lines.append(f"{names[0]}{suffix} is not preloaded, because it {reason}.")
    return lines


def build_doctor_rows() -> list[Verdict]:
    """Return the row of ``distdl doctor``."""
    facts = read_state()
    disabled_by, template = facts["switched_off"], facts["template"]
    if disabled_by:
        return [Verdict("Warm starts", "absent", f"off ({disabled_by})", _REMEDIES[disabled_by])]
    text = "a template is being prepared" if facts["is_preparing"] else "no template is running"
    if template is not None:
        text = f"a template has {_describe_modules(template)}; it started {plural(template['jobs'], 'job')}"
    return [Verdict("Warm starts", "ok", f"on; {text}")]


def _describe_modules(status: Mapping[str, Any]) -> str:
    """Return the modules that a template has loaded and its memory (proportional and total) as text."""
    loaded = f"loaded {plural(status['modules'], 'module')} ({listing(status['loads']) or 'no framework'})"
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(status["pid"]).memory_full_info()
        loaded += f" and uses {size(memory.pss)} of memory ({size(memory.rss)} with shared pages)"
    return loaded

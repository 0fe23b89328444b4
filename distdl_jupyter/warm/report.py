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
    files = start.get_template_files()
    return {
        "switched_off": start.find_disabling_setting(),
        "idle_minutes": start.read_settings().idle_minutes,
        "template": start.get_status(files),
        "is_preparing": start.has_template(files),
    }


def describe() -> list[str]:
    """Return the state of warm starts for this Python, one sentence or two per line."""
    files, state = start.get_template_files(), read_state()
    disabled_by, template = state["switched_off"], state["template"]
    lines = [f"Warm starts are on. An unused template ends after {state['idle_minutes']:g} minutes."]
    if disabled_by:
        lines = [f"Warm starts are switched off by {disabled_by}. {_REMEDIES[disabled_by]}"]
    if template is not None:
        since = ago(max(0.0, time.time() - template["since"]))
        lines += [
            f"The template for {files.python} was started {since} (pid {template['pid']}).",
            f"It has {_describe_modules(template)}.",
            f"It has started {plural(template['jobs'], 'job')} ({template['running']} running).",
        ]
    elif state["is_preparing"]:
        lines.append(f"A template for {files.python} is being prepared.")
    elif not disabled_by:
        lines.append(f"No template is running for {files.python}. To start one now, run `distdl warm start`.")
    by_reason: dict[str, list[str]] = {}
    for name, reason in preload.ImportHistory(files.history).unforkable.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        suffix = f" The same applies to {plural(len(names) - 1, 'other module')}." if names[1:] else ""
        lines.append(f"{names[0]} is not preloaded, because it {reason}.{suffix}")
    return lines


def build_doctor_rows() -> list[Verdict]:
    """Return the row of ``distdl doctor``."""
    if disabled_by := start.find_disabling_setting():
        return [Verdict("Warm starts", "absent", f"off ({disabled_by})", _REMEDIES[disabled_by])]
    template = start.get_status(start.get_template_files())
    text = "no template is ready" if template is None else f"a template has {_describe_modules(template)}"
    return [Verdict("Warm starts", "ok", f"on; {text}")]


def _describe_modules(status: Mapping[str, Any]) -> str:
    """Return the modules that a template has loaded and its memory (proportional and total) as text."""
    loaded = f"loaded {plural(status['modules'], 'module')} ({listing(status['loads']) or 'no framework'})"
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(status["pid"]).memory_full_info()
        loaded += f" and uses {size(memory.pss)} of memory ({size(memory.rss)} with shared pages)"
    return loaded

"""What a user may know of warm starts: in words, and as the doctor's row."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from distdl_jupyter.core.humanize import ago, listing, plural, short_id, size
from distdl_jupyter.environment.doctor import Row
from distdl_jupyter.warm import settings, start, template_client, template_files

_BY_VARIABLE = "To switch them on, unset DISTDL_WARM."
_BY_SETTINGS = "To switch them on, run %dist_config warm on, or `distdl warm on`."


def lines() -> list[str]:
    """Return how warm starts stand for this Python: one line a fact."""
    where = template_files.of()
    off = settings.switched_off()
    if off:
        said = [f"Warm starts are switched off by {off}. {_BY_VARIABLE if off == 'DISTDL_WARM' else _BY_SETTINGS}"]
    else:
        minutes = settings.read().idle_minutes
        said = [f"Warm starts are on. An unused template ends after {minutes:g} minutes."]
    return [*said, *_template(where), *_unlike(where), *_last_cold(where)]


def _template(where: template_files.TemplateFiles) -> list[str]:
    own = template_client.status(where)
    if own is None:
        if template_client.is_being_made(where):
            return [f"A template for {where.python} is being prepared."]
        if settings.switched_off():
            return []
        return [
            f"No template is running for {where.python}. The next job starts one; to start one now, "
            "run `distdl warm start`."
        ]
    shared, alone = memory(own["pid"])
    used = f"{size(alone)} of memory ({size(shared)} with shared pages)" if shared else "an unknown amount of memory"
    loaded = f"{plural(own['modules'], 'module')} ({listing(own['loads']) or 'no framework'})"
    return [
        f"The template for {where.python} was started {ago(max(0.0, time.time() - own['since']))} (pid {own['pid']}).",
        f"It uses {used} and has loaded {loaded}.",
        f"It has started {plural(own['jobs'], 'job')} ({own['running']} running).",
    ]


def _unlike(where: template_files.TemplateFiles) -> list[str]:
    from distdl_jupyter.warm.import_history import Learned

    because: dict[str, list[str]] = {}
    for name, why in Learned(where.learned).unfit.items():
        because.setdefault(why, []).append(name)
    return [f"{_first(names)} is not preloaded, because it {why}." for why, names in because.items()]


def _first(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _last_cold(where: template_files.TemplateFiles) -> list[str]:
    last = start.last_cold(where)
    if not last:
        return []
    when = ago(max(0.0, time.time() - float(last["time"])))
    return [f"Last cold start: job {short_id(last['job'])}, {when}. {last['reason']}"]


def memory(pid: int) -> tuple[int, int]:
    """Return the memory of a process in bytes: all that it maps, and its share when shared pages are split (PSS).

    (0, 0) where the operating system does not say.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        found = dict(line.split(":", 1) for line in text.splitlines()[1:])
        return tuple(int(found[name].split()[0]) * 1024 for name in ("Rss", "Pss"))  # type: ignore[return-value]
    return 0, 0


def rows() -> list[Row]:
    """Return the doctor's row."""
    off = settings.switched_off()
    if off:
        return [
            Row(
                "Warm starts",
                "absent",
                f"off ({off})",
                _BY_VARIABLE if off == "DISTDL_WARM" else _BY_SETTINGS,
            )
        ]
    where = template_files.of()
    own = template_client.status(where)
    if own is None:
        ready = "a template is being prepared" if template_client.is_being_made(where) else "no template is running"
        return [Row("Warm starts", "ok", f"on; {ready}")]
    resident, share = memory(own["pid"])
    held = f", {size(resident)} of memory ({size(share)} without shared pages)" if resident else ""
    loads = listing(own["loads"]) or "no framework"
    return [Row("Warm starts", "ok", f"on; a template with {loads}{held}, {plural(own['jobs'], 'job')} started")]

"""Makes a template ready for a benchmark that starts jobs warm, and tells which of them were cold after all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.warm import start as warm_start
from distdl_jupyter.warm import template_files
from distdl_jupyter.warm.start import COLD

#: How often a job may be started until one starts warm.
TRIES = 8


class StillCold(Exception):
    """No job started warm; the text is the reason that the last one gave."""


@contextmanager
def warmed(jobs: Iterable[Callable[[], object]]) -> Iterator[str]:
    """Run each of ``jobs`` until one like it starts warm; yield why not ("" when all do), stop the template at the end.

    The template learns from jobs what to import, so the first ones are cold and the template is made anew after them.
    """
    try:
        try:
            for job in jobs:
                _until_warm(job)
            reason = ""
        except StillCold as error:
            reason = str(error)
        yield reason
    finally:
        warm_start.stop(template_files.of())


def _until_warm(job: Callable[[], object]) -> None:
    for _ in range(TRIES):
        job()
        if not (reason := why_cold(newest())):
            return
        warm_start.wait_until_ready(template_files.of())
    raise StillCold(reason)


def newest() -> str:
    """Return the id of the newest job."""
    return max(folder.id for folder in JobStore().folders())


def told(reasons: list[str]) -> str:
    """Return what a table says of warm jobs, given each one's ``why_cold``."""
    cold = [reason for reason in reasons if reason]
    return f"{len(cold)} of {len(reasons)} started cold: {cold[-1]}" if cold else ""


def why_cold(id_: str) -> str:
    """Return why a job was started cold ("" for a warm start)."""
    events = JobStore().folder(id_).events.read_text().splitlines()
    notes = (event for event in map(json.loads, events) if event.get("code") == COLD)
    return next((str(note["text"]) for note in notes), "")

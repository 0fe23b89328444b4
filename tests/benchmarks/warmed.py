"""Waits until the next job of this process starts warm, and hands the template's memory back at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def until_warm(jobs: Iterable[Callable[[], object]]) -> None:
    """Run each of ``jobs`` once, so that what they import is learned, and wait until a template is ready."""
    for job in jobs:
        job()

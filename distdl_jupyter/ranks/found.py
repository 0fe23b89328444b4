"""Which sessions of ranks live, found on disk without reading any job's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.worker.serving.listener import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.store import JobFolder


def running() -> Iterator[JobFolder]:
    """Yield the folders of sessions that live on this machine, newest first."""
    for folder in JobStore().folders():
        if (folder.path / NOTES).is_dir() and lives(folder):
            yield folder


def lives(folder: JobFolder) -> bool:
    """Say whether a job has its supervisor on this host: the lock is held as long as it lives."""
    supervisor = folder.supervisor()
    return supervisor.held and not supervisor.host

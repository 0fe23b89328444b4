"""Which sessions of ranks live, found on disk without reading any job's log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.worker.serving.listener import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.store import JobFolder


def running() -> Iterator[JobFolder]:
    """Yield the folders of sessions that may live and have their supervisor on this machine, newest first.

    One whose supervisor was killed may go on in an allocation of Slurm: then its notes were left.
    """
    for folder in JobStore().folders():
        if (folder.path / NOTES).is_dir():
            supervisor = folder.supervisor()
            if not supervisor.host and (supervisor.held or stamps(folder)):
                yield folder


def stamps(folder: JobFolder) -> dict[str, int]:
    """Return when the note of each rank was written, in ns: another supervisor writes them anew."""
    found = {}
    for path in (folder.path / NOTES).glob("rank-*.json"):
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_mtime_ns
    return found

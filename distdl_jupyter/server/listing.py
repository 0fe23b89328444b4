"""All jobs of the data directory as rows, read anew only where something can have changed.

A job that has ended is read once; the others are followed. Safe to call from any thread.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.presentation.listing import job_row
from distdl_jupyter.reading import Outline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.presentation.schema import JobRow

#: Seconds that a look at all jobs may take when what is not known yet can follow later.
TURN = 0.4


@dataclass(frozen=True, slots=True)
class Listed:
    """A row with what the list of clusters asks beyond it: kind of cluster, hosts of the ranks."""

    row: JobRow
    cluster: str
    hosts: tuple[str, ...]

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return not State(self.row.state).ended


class Listing:
    """The jobs, newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, Listed] = {}
        self._living: dict[str, Outline] = {}

    def all(self) -> list[Listed]:
        """Return every job as it is now, newest first. The first time it takes as long as there are jobs."""
        return self.known(seconds=float("inf"))

    def known(self, seconds: float = TURN) -> list[Listed]:
        """Return the jobs as they are now, newest first, those that can be read in some seconds, one more at least.

        Jobs that have not ended are always among them when an earlier call has met them.
        """
        until = time.monotonic() + seconds
        folders = {folder.id: folder for folder in JobStore().folders()}
        self._forget(folders)
        found, more = [], True
        for id_, folder in folders.items():
            one = self._ended.get(id_)
            if one is None and (more or id_ in self._living):
                with self._lock:
                    one = self._ended.get(id_) or self._read(folder)
                more = time.monotonic() < until
            if one is not None:
                found.append(one)
        return found

    def _forget(self, folders: Mapping[str, JobFolder]) -> None:
        with self._lock:
            for kept in (self._ended, self._living):
                for id_ in [id_ for id_ in kept if id_ not in folders]:
                    del kept[id_]

    def _read(self, folder: JobFolder) -> Listed | None:
        try:
            reader = self._living.get(folder.id) or Outline(folder)
            reader.catch_up()
        except JobNotFound:
            return None
        row = job_row(reader.view, reader.book, reader.spec, time.time())
        hosts = tuple(dict.fromkeys(rank.host for rank in reader.view.ranks if rank.host))
        found = Listed(row, reader.spec.cluster, hosts)
        if found.active:
            self._living[folder.id] = reader
        else:
            self._living.pop(folder.id, None)
            self._ended[folder.id] = found
        time.sleep(0)  # other threads, the event loop's among them, get their turn
        return found

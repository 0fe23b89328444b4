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
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.presentation.schema import JobRow


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
        """Return every job as it is now, newest first."""
        with self._lock:
            folders = {folder.id: folder for folder in JobStore().folders()}
            self._ended = {id_: one for id_, one in self._ended.items() if id_ in folders}
            self._living = {id_: one for id_, one in self._living.items() if id_ in folders}
            found = [self._ended.get(id_) or self._read(folder) for id_, folder in folders.items()]
        return [one for one in found if one is not None]

    def _read(self, folder: JobFolder) -> Listed | None:
        try:
            reader = self._living.get(folder.id) or Outline(folder)
            reader.catch_up()
            time.sleep(0)  # other threads, the event loop's among them, get their turn
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
        return found

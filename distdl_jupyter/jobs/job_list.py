"""Caches the rows of all jobs in a data directory; a row is reread only if it may have changed.

The row of an ended job is read once, from its ``summary.json``; a ``JobReader`` follows each other job. Thread-safe.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter import permissions
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.views.job_table import ListedJob, make_entry, read_summary, write_summary

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds for which one update of a page may read jobs; its next update reads the remaining jobs.
LIST_READ_SECONDS = 0.4


class JobIndex:
    """The jobs of the current data directory, newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store = JobStore()
        self._ended: dict[str, ListedJob] = {}
        self._readers: dict[str, JobReader] = {}

    def read_all(self, seconds: float = math.inf) -> list[ListedJob]:
        """Return the current row of every job, newest first.

        The single-process run of a check is omitted once it has completed. An ended job without a summary is read,
        which takes less than 1 ms. Jobs that cannot be read within ``seconds`` are omitted, but each call reads
        at least one more job than the previous one.
        """
        ids = self._list_ids()
        return _drop_check_runs(self._read(ids, seconds), ids)

    def read_ended(self) -> dict[str, ListedJob]:
        """Return the ended jobs that have a summary, by id; no other file of a job is read."""
        for id_ in self._list_ids():
            if id_ not in self._ended and (entry := read_summary(self._store.get_folder(id_))) is not None:
                self._ended[id_] = entry
        return dict(self._ended)

    def _list_ids(self) -> list[str]:
        """Return all ids, newest first, and discard the entries of deleted jobs."""
        with self._lock:
            store = JobStore()
            if store.jobs != self._store.jobs:
                self._store, self._ended, self._readers = store, {}, {}
            ids = store.list_ids()
            for removed in (self._ended.keys() | self._readers.keys()).difference(ids):
                self._ended.pop(removed, None)
                self._readers.pop(removed, None)
            return ids

    def _read(self, ids: Iterable[str], seconds: float) -> list[ListedJob]:
        deadline, entries, has_time = time.monotonic() + seconds, [], True
        for id_ in ids:
            entry = self._ended.get(id_)
            if entry is None and (has_time or id_ in self._readers):
                with self._lock:
                    entry = self._ended.get(id_) or self._read_job(id_)
                has_time = time.monotonic() < deadline
            if entry is not None:
                entries.append(entry)
        return entries

    def _read_job(self, id_: str) -> ListedJob | None:
        folder, reader = self._store.get_folder(id_), self._readers.pop(id_, None)
        entry = read_summary(folder) if reader is None else None
        if entry is None:
            try:
                reader = reader or JobReader(folder)
                reader.catch_up()
            except JobNotFound:
                return None
            entry = make_entry(folder, reader.view, reader.spec)
            if entry.active:
                self._readers[id_] = reader
                return entry
            if not permissions.is_own(folder.path):
                return entry  # the end may exist only in this view, not in the job's files
            write_summary(folder, entry)
        self._ended[id_] = entry
        return entry


def _drop_check_runs(entries: Iterable[ListedJob], ids: Iterable[str]) -> list[ListedJob]:
    """Omit completed single-process runs whose check is listed: the page of the check links to them."""
    listed_ids = set(ids)
    return [entry for entry in entries if entry.check not in listed_ids or entry.row.state != "completed"]


@functools.cache
def get_index() -> JobIndex:
    """Return the shared list of this process, which reads each ended job only once."""
    return JobIndex()

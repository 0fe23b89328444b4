"""All jobs of a data directory as rows, which are read again only if they may have changed.

The rows of ended jobs are cached on disk (see ``ended_cache``); the others are followed. Thread-safe. Display is up to
the caller.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter import permissions
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.views.ended_cache import Ended, Listed, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Seconds that a look at all jobs may take when what is not known yet can follow later.
TURN = 0.4


class Listing:
    """The jobs of the data directory of now, newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store = JobStore()
        self._ended = Ended(self._store.ended)
        self._readers: dict[str, JobReader] = {}

    def all(self) -> list[Listed]:
        """Return every job as it is now, newest first.

        The single-process run of a check is left out once it has completed. An ended job without a cached row is
        read, which takes some tenths of a millisecond.
        """
        ids = self._ids()
        return _with_checks_as_one(self._read(ids, float("inf")), ids)

    def known(self, seconds: float = TURN) -> list[Listed]:
        """Return the jobs as they are now, newest first, those that can be read in some seconds, one more at least.

        Jobs that have not ended are always among them when an earlier call has met them.
        """
        ids = self._ids()
        return _with_checks_as_one(self._read(ids, seconds), ids)

    def ended(self) -> Mapping[str, Listed]:
        """Return the rows of jobs that are known to have ended, by id; no job is read."""
        self._ids()
        return dict(self._ended.rows)

    def _ids(self) -> list[str]:
        """Return all ids, newest first, and take in what changed since the last time besides the jobs' logs."""
        with self._lock:
            store = JobStore()
            if store.jobs != self._store.jobs:
                self._store, self._ended, self._readers = store, Ended(store.ended), {}
            self._ended.refresh()
            ids = store.ids()
            self._forget(set(ids))
            return ids

    def _forget(self, ids: Collection[str]) -> None:
        for id_ in [id_ for id_ in self._readers if id_ not in ids]:
            del self._readers[id_]
        self._ended.tidy(ids)

    def _read(self, ids: Iterable[str], seconds: float) -> list[Listed]:
        until = time.monotonic() + seconds
        ended, found, more = self._ended, [], True
        new: list[Listed] = []
        for id_ in ids:
            one = ended.rows.get(id_)
            if one is None and (more or id_ in self._readers):
                with self._lock:
                    one = ended.rows.get(id_) or self._follow(id_)
                if one is not None and not one.active and permissions.is_own(self._store.folder(id_).path):
                    new.append(one)  # of others' folders an end may be of this view alone
                more = time.monotonic() < until
            if one is not None:
                found.append(one)
        if new:
            with self._lock:
                ended.add(new)
        return found

    def _follow(self, id_: str) -> Listed | None:
        try:
            reader = self._readers.get(id_) or JobReader(self._store.folder(id_))
            reader.catch_up()
        except JobNotFound:
            return None
        found = listed(reader.folder, reader.view, reader.spec)
        if found.active:
            self._readers[id_] = reader
        else:
            self._readers.pop(id_, None)
        return found


def _with_checks_as_one(found: Iterable[Listed], ids: Iterable[str]) -> list[Listed]:
    """Leave out completed runs on one process whose check is there: its page leads to them."""
    there = set(ids)
    return [one for one in found if one.check not in there or one.row.state != "completed"]


@functools.cache
def here() -> Listing:
    """Return the list of this process: what it has read once it need not read again."""
    return Listing()

"""Deletes the checkpoints of a running job beyond those that ``keep_checkpoints`` asks for."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import checkpoints, events

if TYPE_CHECKING:
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.store import JobFolder

#: Seconds between two looks while the job runs.
_EVERY = 5.0


class CheckpointKeeper:
    """Looks from time to time in a thread of its own, and once more at the end; ``removed`` counts what went.

    It sees the job's own folder: on nodes that do not share it training code sees to its checkpoints itself.
    """

    def __init__(self, folder: JobFolder, kept: str) -> None:
        self._folder, self._keep = folder, checkpoints.keep(kept)
        self._book: SeriesBook | None = None
        self._cursor = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self.removed = 0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look once more, when all ranks have ended."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._tidy(float("inf"))

    def _run(self) -> None:
        while not self._ended.wait(_EVERY):
            self._tidy(time.time())

    def _tidy(self, now: float) -> None:
        if self._book is None:
            self._book = checkpoints.inherited(self._folder)
        found, self._cursor = events.read_all(self._folder.events, self._cursor)
        for event in found:
            self._book.apply(event)
        for one in self._keep.superfluous(checkpoints.of_job(self._folder, self._book), now):
            with contextlib.suppress(OSError):  # gone already, or the disk fails: the training goes on
                checkpoints.remove(one)
                self.removed += 1

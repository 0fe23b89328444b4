"""One reader of a job that keeps everything there is to show: view, curves and log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.log import TAIL, LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.follow import Follower

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.store import JobFolder


class Reading(Follower):
    """A follower with the curves in ``book`` and the newest ``tail`` rows of the log in ``log``."""

    def __init__(self, folder: JobFolder, *, tail: int = TAIL) -> None:
        super().__init__(folder)
        self.book = SeriesBook()
        self.log = LogBook(self.view.process_count, tail)

    def fold(self, event: Event) -> None:
        """Take one event in."""
        super().fold(event)
        self.book.apply(event)
        self.log.apply(event)

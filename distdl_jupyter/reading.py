"""Readers of a job that keep what there is to show: view, curves and log, or all but the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from distdl_jupyter.core.log import TAIL, LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.follow import Follower

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event, Part
    from distdl_jupyter.core.store import JobFolder


class Outline(Follower):
    """A follower with the curves in ``book`` that leaves the log unread: quick whatever a job printed.

    Counts of lines stay 0 in its view.
    """

    part: ClassVar[Part] = "others"

    def __init__(self, folder: JobFolder) -> None:
        super().__init__(folder)
        self.book = SeriesBook()

    def fold(self, event: Event) -> None:
        """Take one event in."""
        super().fold(event)
        self.book.apply(event)


class Reading(Outline):
    """A follower with the curves in ``book`` and the newest ``tail`` rows of the log in ``log``."""

    part: ClassVar[Part] = "all"

    def __init__(self, folder: JobFolder, *, tail: int = TAIL) -> None:
        super().__init__(folder)
        self.log = LogBook(self.view.process_count, tail)

    def fold(self, event: Event) -> None:
        """Take one event in."""
        super().fold(event)
        self.log.apply(event)

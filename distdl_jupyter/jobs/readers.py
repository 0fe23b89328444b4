"""Readers of a job that keep what there is to show: view and curves, or these and the log.

Events are read from the first one on, and there are few of them; the log is read from its end. What a user looks for
first is there at once, whatever the job printed before.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from distdl_jupyter.core import parts
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.figure import Earlier
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.log import TAIL, LogBook
from distdl_jupyter.core.logwindow import LogWindow
from distdl_jupyter.core.resources import ResourceBook, ResourceReader
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.step_times import StepTimesReader
from distdl_jupyter.core.store import JobFolder, is_id
from distdl_jupyter.jobs.follow import SummaryReader

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.view import JobView

#: Bytes of events that are read before others get a turn.
_LOOK = 512 * 1024
#: Bytes of samples that are read before others get a turn: decoding takes longer.
_LOOK_SAMPLES = 128 * 1024
#: Records of steps whose mean is shown while a job runs.
NEWEST_STEPS = 100


class CurveReader(SummaryReader):
    """A reader with the view, and the curves in ``book``; it leaves the log unread."""

    def __init__(self, folder: JobFolder) -> None:
        super().__init__(folder)
        self.book = SeriesBook()

    def fold(self, event: Event) -> None:
        """Take one event in."""
        super().fold(event)
        self.book.apply(event)

    @functools.cached_property
    def earlier(self) -> Earlier | None:
        """The job from whose checkpoints this one goes on, with its curves when first asked; None when it is gone."""
        if not is_id(self.spec.resumed_from):
            return None
        try:
            reader = CurveReader(JobFolder(self.folder.path.with_name(self.spec.resumed_from)))
            reader.catch_up()
        except DistDLError:
            return None
        return Earlier(reader.book, short_id(self.spec.resumed_from), self.spec.forked_at)


class Reading(CurveReader):
    """A reader in small steps: first the events, then the newest rows of the log; then what is new.

    State and metrics never wait for a log: ``step`` looks for them first each time. ``log`` holds the newest ``tail``
    rows, ``window`` has the earlier ones, ``resources`` what ranks and machines use, ``steps`` the newest steps.
    """

    def __init__(self, folder: JobFolder, *, tail: int = TAIL) -> None:
        super().__init__(folder)
        self.window = LogWindow(folder.log, self.view.process_count, tail)
        #: Whether all was read that stood in the files the first time: of the events, of the log.
        self.seen = self.complete = False
        self._samples = ResourceReader(folder.resources)
        self.resources = ResourceBook(self._samples.about)
        self.steps = StepTimesReader(folder.steps, NEWEST_STEPS)
        self._first_end = 0

    @property
    def log(self) -> LogBook:
        """The log's newest rows. Another book takes its place when the reader skips ahead."""
        return self.window.book

    @functools.cached_property
    def _left_checkpoints(self) -> bool:
        return self.folder.has_checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether the job has ended and left something from which it can go on; looked for once."""
        return self.view.state.ended and self._left_checkpoints

    def step(self) -> bool:
        """Read a little more; False when there is nothing more now."""
        began = self.cursor
        self.look(_LOOK)
        if not self.seen and self.cursor > began:
            return True
        if not self.seen:
            self.seen, self._first_end = True, parts.size(self.folder.log)
        moved = self.window.step(self.view)
        self.complete = self.complete or not moved or self.window.cursor >= self._first_end
        samples = self._samples.read(_LOOK_SAMPLES)
        for sample in samples:
            self.resources.apply(sample)
        stepped = self.steps.read()
        return moved or self.cursor > began or bool(samples) or stepped

    def count(self) -> None:
        """Leave the lines to the window, which counts those that it reads."""

    def catch_up(self) -> JobView:
        """Read all there is now and return the view."""
        while self.step():
            pass
        if self.listen(received=False):
            self.catch_up()
        return self.view

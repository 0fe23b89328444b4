"""Readers of a job that keep what there is to show: view and curves, or these and the log.

They begin with what is kept beside the log (``core.snapshot``) and with its end: what a user looks for first is there
at once, whatever the job printed and reported before.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from distdl_jupyter.core import events, keptcurves
from distdl_jupyter.core.log import TAIL, LogBook
from distdl_jupyter.core.logwindow import LogWindow
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.follow import Onlooker

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView

#: Bytes of a file that are looked through before others get a turn: at first, and of what is new.
_LOOK, _NEWS = 4 * 1024 * 1024, 32 * 1024 * 1024


class Outline(Onlooker):
    """A reader with the view, and the curves in ``book``; it leaves the log unread."""

    def __init__(self, folder: JobFolder) -> None:
        known = keptcurves.read(folder)  # before the view, so that they are not the newer ones
        super().__init__(folder)
        self._has_curves = known is not None and known[1] <= self.cursor
        self.book, drawn = known if known is not None and self._has_curves else (SeriesBook(), 0)
        #: The curves of the bytes that the view began behind: up to where they were read, and their end.
        self._drawn, self._undrawn = drawn, self.cursor
        #: What came meanwhile: a restart makes the order of points matter.
        self._behind: list[Event] = []

    def fold(self, event: Event) -> None:
        """Take one event in."""
        super().fold(event)
        if self._drawn >= self._undrawn:
            self.book.apply(event)
        elif event["type"] in ("metric", "restart"):
            self._behind.append(event)

    def catch_up(self) -> JobView:
        """Read all there is now and return the view."""
        while self.draw():
            pass
        return super().catch_up()

    def draw(self) -> bool:
        """Read some of the curves from before the place where the view began; False when there is nothing more."""
        if self._drawn >= self._undrawn:
            self._keep()
            return False
        most, end = min(_LOOK, self._undrawn - self._drawn), self._undrawn
        found, cursor = events.read(self.folder.events, self._drawn, most, "others", before=end)
        for event in found:
            self.book.apply(event)
        self._drawn = cursor if cursor > self._drawn else self._undrawn
        if self._drawn >= self._undrawn:
            behind, self._behind = self._behind, []
            for event in behind:
                self.book.apply(event)
        return True

    def _keep(self) -> None:
        """Keep the curves of an ended job where nobody has."""
        if self.view.state.ended and not self._has_curves:
            self._has_curves = True
            keptcurves.write(self.folder, self.book, self.cursor)


class Reading(Outline):
    """A reader in small steps: first the state, then the newest rows of the log, then the curves; then what is new.

    State and metrics never wait for a log: ``step`` looks for them first each time. ``log`` holds the newest ``tail``
    rows, ``window`` has the earlier ones.
    """

    def __init__(self, folder: JobFolder, *, tail: int = TAIL) -> None:
        super().__init__(folder)
        self.window = LogWindow(folder.events, self.view.process_count, tail)
        #: Whether all was read that stood in the file the first time: of the state, of the log, of the curves.
        self.seen = self.complete = self.drawn = False
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
        # Later on all that is new, so that a flood never keeps the log from its turn.
        self.look(_NEWS if self.seen else _LOOK)
        if not self.seen and self.cursor - began >= _LOOK // 2:
            return True
        if not self.seen:
            self.seen, self._first_end = True, self.cursor
        moved = self.window.step(self.view, self.cursor)
        self.complete = self.complete or self.window.cursor >= self._first_end
        drawing = self.draw()
        self.drawn = self.drawn or not drawing
        return moved or drawing or self.cursor > began

    def catch_up(self) -> JobView:
        """Read all there is now and return the view."""
        while self.step():
            pass
        if self.listen(heard=False):
            self.catch_up()
        return self.view

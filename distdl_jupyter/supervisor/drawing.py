"""The curves of the running job, folded beside its view.

Late viewers find them kept (core.keptcurves), and they say which reports need not be told apart (supervisor.thinning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.store import JobFolder


#: Values of all series, of 48 bytes each, that are folded at most.
_MOST = 2_000_000


class Drawing:
    """The curves; a job that reports nothing costs nothing, and one that reports too much is given up."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._book: SeriesBook | None = None
        self._given_up = False

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        if event["type"] == "metric" and self._book is None and not self._given_up:
            from distdl_jupyter.core.series import SeriesBook

            self._book = SeriesBook()
        if self._book is not None:
            self._book.apply(event)

    def extends(self, rank: int, step: float, names: Iterable[str]) -> bool:
        """Say whether a curve need not tell a report from the rank's newest one (see ``SeriesBook.extends``)."""
        return self._book is not None and self._book.extends(rank, step, names)

    def keep(self, cursor: int) -> None:
        """Keep the curves of all events in the first ``cursor`` bytes."""
        if self._book is None:
            return
        from distdl_jupyter.core import keptcurves

        if self._book.size > _MOST:
            self._book, self._given_up = None, True
        else:
            keptcurves.write(self._folder, self._book, cursor)

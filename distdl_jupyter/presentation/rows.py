"""Rows of a log as they travel to a page: short lists, because there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.presentation.schema import LogChanges, LogRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.log import LogBook, Row


def changes(book: LogBook, since: int = 0, *, newest: int | None = None) -> tuple[LogChanges, int]:
    """Return what changed since a mark (0: everything that is kept, of it the ``newest`` rows) and the new mark."""
    found = book.changes(since)
    return told(book, found.rows if newest is None else found.rows[-newest:]), found.mark


def told(book: LogBook, rows: Iterable[Row]) -> LogChanges:
    """Return some rows of a log with what goes along: the open lines and the counts of now."""
    return LogChanges(
        rows=tuple(row(one) for one in rows),
        open=tuple(row(one) for one in book.open),
        first=book.first,
        next=book.next,
        total=book.total,
        errors={str(rank): many for rank, many in book.errors.items()},
    )


def row(one: Row) -> LogRow:
    """Return one row; a line that is being redrawn belongs to its rank although it has no number yet."""
    lines = one.lines or ({one.rank: 0} if one.rank is not None else {})
    numbers = {str(rank): line for rank, line in lines.items()}
    return (one.n, one.t, one.rank, one.stream, one.text, one.redraws, numbers)

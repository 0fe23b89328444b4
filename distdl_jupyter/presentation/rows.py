"""Rows of a log as they travel to a page: short lists, because there are many."""

from __future__ import annotations

from distdl_jupyter.core.log import LogBook, Row
from distdl_jupyter.presentation.schema import LogChanges, LogRow


def changes(book: LogBook, since: int = 0, *, newest: int | None = None) -> tuple[LogChanges, int]:
    """Return what changed since a mark (0: everything that is kept, of it the ``newest`` rows) and the new mark."""
    found = book.changes(since)
    rows = found.rows if newest is None else found.rows[-newest:]
    told = LogChanges(
        rows=tuple(row(one) for one in rows),
        open=tuple(row(one) for one in found.open),
        first=found.first,
        next=book.next,
        total=book.total,
        errors={str(rank): many for rank, many in book.errors.items()},
    )
    return told, found.mark


def row(one: Row) -> LogRow:
    """Return one row; a line that is being redrawn belongs to its rank although it has no number yet."""
    lines = one.lines or ({one.rank: 0} if one.rank is not None else {})
    numbers = {str(rank): line for rank, line in lines.items()}
    return (one.n, one.t, one.rank, one.stream, one.text, one.redraws, numbers)

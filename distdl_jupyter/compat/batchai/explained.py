"""What became of each field of a Batch AI job, as a table for a notebook and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from distdl_jupyter.presentation import table

#: Taken as it is, taken in another form, not needed here, or standing in the way of a start.
How = Literal["taken", "changed", "ignored", "missing"]
_HEAD = ("Batch AI", "said", "here")
_MOST = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One field: its name, what it said, what it became. ``how`` is "missing" when the job cannot start so."""

    field: str
    said: str
    became: str
    how: How = "taken"

    @property
    def here(self) -> str:
        """What became of it, in words."""
        return {"ignored": "ignored: ", "missing": "MISSING: "}.get(self.how, "") + self.became


class Explanation:
    """The table. ``rows`` is what it shows; ``ready`` says whether the job can start."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return all(row.how != "missing" for row in self.rows)

    @property
    def _foot(self) -> str:
        if self.ready:
            return 'Nothing is missing: submit(batchai_job="job.json") starts it.'
        return "The job cannot start before what is MISSING is given."

    def _cells(self) -> list[tuple[str, str, str]]:
        return [_HEAD, *((row.field, _short(row.said), row.here) for row in self.rows)]

    def __repr__(self) -> str:
        return f"{table.whole_text(self._cells())}\n{self._foot}"

    def _repr_html_(self) -> str:
        return f"{table.whole_html(self._cells())}<p>{escape(self._foot)}</p>"


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"

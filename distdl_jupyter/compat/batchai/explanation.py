"""A Batch AI job in the options of this package, with a table of what each of its fields became."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import looks_secret
from distdl_jupyter.views import table
from distdl_jupyter.worker.secret_patterns import MASK, mask

#: Taken as it is, taken in another form, not needed here, or standing in the way of a start.
How = Literal["taken", "changed", "ignored", "missing"]
_LONGEST = 100
#: ``--password=VALUE`` and ``API_KEY=VALUE``; ``--password VALUE``.
_VALUE = r"""('[^']*'|"[^"]*"|[^\s;&|]+)"""
_NAMED_VALUES = (re.compile(rf"([\w-]+=){_VALUE}"), re.compile(rf"((?<!\S)--?[\w-]+\s+)(?!-){_VALUE}"))


@dataclass(frozen=True, slots=True)
class Row:
    """One field: its name, what it said, what it became."""

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
    def _summary(self) -> str:
        if self.ready:
            return 'Nothing is missing. Start it: submit(batchai_job="job.json")'
        return "The job cannot start until the MISSING items are provided."

    def _cells(self) -> list[tuple[str, str, str]]:
        rows = [(row.field, row.said if len(row.said) <= _LONGEST else f"{row.said[: _LONGEST - 1]}…", row.here)
                for row in self.rows]  # fmt: skip
        return [("Batch AI", "said", "here"), *rows]

    def __repr__(self) -> str:
        return f"{table.whole_text(self._cells())}\n{self._summary}"

    def _repr_html_(self) -> str:
        return f"{table.whole_html(self._cells())}<p>{escape(self._summary)}</p>"


@dataclass(slots=True)
class ImportedJob:
    """The job: ``options`` are those of ``submit``; ``layout`` is what ranks prepare before the script runs.

    ``secrets`` are the names of variables whose values must not be written down. ``problems`` keep it from starting.
    """

    script: Path | None = None
    arguments: tuple[str, ...] = ()
    directory: Path = field(default_factory=Path.cwd)
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    layout: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    problems: list[InvalidSpec] = field(default_factory=list)

    def add_row(self, field_: str, said: str, became: str, how: How = "taken") -> None:
        """Add a row of the table; secrets in what the field said are masked."""
        for pattern in _NAMED_VALUES:
            said = pattern.sub(_without_secret, said)
        self.rows.append(Row(field_, mask(said), became, how))

    def add_problem(self, field_: str, said: str, problem: InvalidSpec) -> None:
        """Add a row that says what keeps the job from starting."""
        self.add_row(field_, said, str(problem), "missing")
        self.problems.append(problem)

    def set_variable(self, name: str, value: str) -> None:
        """Give every rank an environment variable."""
        self.options.setdefault("environment_variables", {})[name] = value


def _without_secret(match: re.Match[str]) -> str:
    return match[1] + MASK if looks_secret(match[1].strip("-= \t\n").replace("-", "_")) else match[0]

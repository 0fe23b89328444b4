"""Findings of the checks before a job starts. An error prevents the start, a warning is shown, an info is collapsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Minimum size in bytes of a captured value that is reported as large.
LARGE_BYTES = 100_000_000
Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: ``text`` describes it with numbers, ``remedy`` is the fix; ``code`` is for programs."""

    level: Level
    code: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``result`` is a one-line summary; ``code`` is its stable name for programs."""

    name: str
    result: str
    findings: tuple[Finding, ...] = ()
    code: str = ""

    @property
    def passed(self) -> bool:
        """Whether all findings are infos."""
        return all(finding.level == "info" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that is read but defined nowhere.

    ``where`` names the searched code (``the cell or the notebook``), ``location`` is the line that reads the name
    (``line 2 of Cell [3]``). ``certain`` is true if every run reads it; ``similar`` are names with similar spelling.
    """

    name: str
    location: str
    where: str
    certain: bool
    similar: tuple[str, ...] = ()

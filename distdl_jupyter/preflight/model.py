"""What checks take and give: plain data. An error stops the start, a warning is shown, an info is folded away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.spec import Captured, Kind

#: Bytes from which a captured value is named as large.
LARGE = 100_000_000
Level = Literal["error", "warning", "info"]
_LEVELS: tuple[Level, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: ``text`` says what, with numbers, ``remedy`` what to do about it; ``code`` is for programs."""

    level: Level
    code: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``result`` says in one line what was seen; ``code`` is its stable name for programs."""

    name: str
    result: str
    findings: tuple[Finding, ...] = ()
    code: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing but infos was found."""
        return all(finding.level == "info" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    """All checks in the order in which they are shown."""

    checks: tuple[Check, ...]

    @property
    def findings(self) -> list[Finding]:
        """All findings, errors first."""
        found = [finding for check in self.checks for finding in check.findings]
        return sorted(found, key=lambda finding: _LEVELS.index(finding.level))

    def summary(self) -> str:
        """Return one line: ``All 6 checks passed``, ``4 of 6 checks passed, 1 error, 1 warning``."""
        passed = sum(check.passed for check in self.checks)
        if passed == len(self.checks):
            return f"All {passed} checks passed"
        counts = [(sum(f.level == level for f in self.findings), level) for level in _LEVELS[:2]]
        found = ", ".join(plural(count, level) for count, level in counts if count)
        return f"{passed} of {len(self.checks)} checks passed, {found}"


class Text(Protocol):
    """One piece of source; ``first_line`` is the line that people see for line 1 of ``text``."""

    @property
    def text(self) -> str:
        """The source."""
        ...

    @property
    def label(self) -> str:
        """Where it stands: ``Cell [4]``, ``train.py``."""
        ...

    @property
    def beside(self) -> bool:
        """Whether it is a module that travels with the training code."""
        ...

    @property
    def first_line(self) -> int:
        """Number of its first line."""
        ...


class ShippedModule(Protocol):
    """A module in the notebook's folder."""

    @property
    def label(self) -> str:
        """File or folder."""
        ...

    @property
    def left_out(self) -> Sequence[Path]:
        """Files that were too large to travel."""
        ...


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that is read but defined nowhere.

    ``where`` says where a definition was looked for (``the cell or the notebook``), ``place`` which line reads the name
    (``line 2 of Cell [3]``); ``certain`` says that every run reads it, ``similar`` are names that exist and differ
    little.
    """

    name: str
    place: str
    where: str
    certain: bool
    similar: tuple[str, ...] = ()


class CapturedCode(Protocol):
    """Captured code, as far as checks need it (see capture.Draft)."""

    @property
    def kind(self) -> Kind:
        """Cell, function or script."""
        ...

    @property
    def captured(self) -> Sequence[Captured]:
        """What travels."""
        ...

    @property
    def modules(self) -> Sequence[ShippedModule]:
        """Modules in the notebook's folder that travel."""
        ...

    @property
    def texts(self) -> Sequence[Text]:
        """All source that could be read."""
        ...

    @property
    def aliases(self) -> Mapping[str, str]:
        """What captured names refer to, by full name."""
        ...

    @property
    def imports(self) -> frozenset[str]:
        """Top-level modules that the code needs."""
        ...

    @property
    def on_gpu(self) -> Sequence[str]:
        """Names that hold tensors on a GPU."""
        ...

    @property
    def undefined(self) -> Sequence[UndefinedName]:
        """Names that nothing defines."""
        ...

    @property
    def deleted(self) -> Mapping[str, int]:
        """Names that are deleted without being there, with their line."""
        ...

    @property
    def numbers(self) -> Mapping[str, float]:
        """Plain numbers by name."""
        ...

    @property
    def secret_arguments(self) -> frozenset[int]:
        """Positions of script arguments that look secret."""
        ...

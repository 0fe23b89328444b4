"""The list of mutants: which lines of which file become which, and what the tests said of each so far.

A mutant is found by its text, not by line numbers: the lines ``before`` must stand in the file exactly once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results.tsv"


class NotFound(Exception):
    """The lines of a mutant do not stand in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str
    operator: str = ""

    @property
    def area(self) -> str:
        return self.name.rpartition("-")[0]

    def of(self, source: str) -> str:
        """Return the mutated source."""
        if (times := source.count(self.before)) != 1 or self.before == self.after:
            raise NotFound(f"{self.name}: its lines stand {times} times in {self.file}")
        return source.replace(self.before, self.after)

    @contextmanager
    def inside(self, root: Path) -> Iterator[None]:
        """Have the mutant in the code below ``root``."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        try:
            _write(path, self.of(source))
            yield
        finally:
            _write(path, source)


def _write(path: Path, text: str) -> None:
    """Write a source; what Python has compiled of it could pass for new within the same second."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


@dataclass(frozen=True)
class Result:
    """What the tests said of a mutant: ``killer`` is the first test that failed, "" when none did."""

    name: str
    selection: str  # "quick" or "all"
    killer: str
    seconds: int
    commit: str


def mutants() -> dict[str, Mutant]:
    """Return all mutants by name."""
    lists = [tomllib.loads((HERE / name).read_text(encoding="utf-8")) for name in ("python.toml", "typescript.toml")]
    return {name: Mutant(name, **fields) for found in lists for name, fields in found.items()}


def equivalent() -> dict[str, str]:
    """Return why nothing can tell some mutants from the code itself, by name."""
    return tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))


def results() -> dict[str, dict[str, Result]]:
    """Return the last result of every mutant in each selection: ``results()["quick"]["core-01"]``."""
    found: dict[str, dict[str, Result]] = {"quick": {}, "all": {}}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else ():
        name, selection, killer, seconds, commit = line.split("\t")
        found[selection][name] = Result(name, selection, killer, int(seconds), commit)
    return found


def keep(result: Result) -> None:
    """Append a result; the last of a mutant counts."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(f"{result.name}\t{result.selection}\t{result.killer}\t{result.seconds}\t{result.commit}\n")

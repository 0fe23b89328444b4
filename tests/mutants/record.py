"""The mutants, each with the lines that it changes, and what the tests said of them so far.

A mutant is found by its text, not by line numbers: ``before`` must stand in the file exactly once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
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

    @contextmanager
    def inside(self, root: Path) -> Iterator[None]:
        """Have the mutant in the code below ``root``."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        if (times := source.count(self.before)) != 1:
            raise NotFound(f"{self.name}: its lines stand {times} times in {self.file}")
        try:
            _write(path, source.replace(self.before, self.after))
            yield
        finally:
            _write(path, source)


def _write(path: Path, text: str) -> None:
    """Write a source, and forget what Python has compiled of it: that could pass for new within the same second."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def mutants() -> dict[str, Mutant]:
    """Return all mutants by name."""
    lists = [tomllib.loads((HERE / name).read_text(encoding="utf-8")) for name in ("python.toml", "typescript.toml")]
    return {name: Mutant(name, **fields) for found in lists for name, fields in found.items()}


def equivalent() -> dict[str, str]:
    """Return why nothing can tell some mutants from the code itself, by name."""
    return tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))


def killers(selection: str) -> dict[str, str]:
    """Return which test killed each mutant in the last run of a selection, "" where none did."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    fields = [line.split("\t") for line in lines]
    return {name: killer for name, of, killer, *_ in fields if of == selection}


def keep(*fields: object) -> None:
    """Append a run: mutant, selection, the test that failed, seconds, commit."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write("\t".join(map(str, fields)) + "\n")


def forget(names: Collection[str]) -> None:
    """Forget all runs of these mutants."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines(keepends=True)
    RESULTS.write_text("".join(line for line in lines if line.split("\t")[0] not in names), encoding="utf-8")

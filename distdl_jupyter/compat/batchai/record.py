"""What a reading of a Batch AI job has found so far, and every word that is said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.compat.batchai.explained import How, Row
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import looks_secret
from distdl_jupyter.worker import secretforms

HIDDEN = "•••"


@dataclass(slots=True)
class Imported:
    """The job: ``options`` are those of ``submit``; ``layout`` is what ranks prepare before the script runs.

    ``secrets`` are the names of variables whose values must not be written down. ``problems`` keep it from starting.
    """

    script: Path | None = None
    arguments: tuple[str, ...] = ()
    directory: Path = field(default_factory=Path.cwd)
    options: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    problems: list[InvalidSpec] = field(default_factory=list)

    def say(self, field_: str, said: object, became: str, how: How = "taken") -> None:
        """Add a row of the table."""
        self.rows.append(Row(field_, str(said), became, how))

    def lack(self, field_: str, said: object, problem: InvalidSpec) -> None:
        """Add a row that says what keeps the job from starting."""
        self.say(field_, said, str(problem), "missing")
        self.problems.append(problem)

    def set_variable(self, name: str, value: str) -> None:
        """Give every rank an environment variable."""
        self.options.setdefault("environment_variables", {})[name] = value


def short(path: Path, folder: Path) -> str:
    """Return a path as seen from ``folder``, whole when it lies elsewhere."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def masked(arguments: tuple[str, ...]) -> str:
    """Return the arguments; what follows a flag of a secret's name, or has a secret's form, is hidden."""
    told, hide = [], False
    for text in arguments:
        flag, equals, _ = text.partition("=")
        secret = text.startswith("-") and looks_secret(flag.lstrip("-").replace("-", "_"))
        told.append(HIDDEN if hide else f"{flag}={HIDDEN}" if secret and equals else secretforms.mask(text))
        hide = secret and not equals
    return " ".join(told)

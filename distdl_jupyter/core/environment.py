"""The stored environment of a job: rank 0's Python with its packages, and the git state of the code.

Only the supervisor writes ``environment.json``: once when rank 0 has started and once when git has responded.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distdl_jupyter.core import files
from distdl_jupyter.core.store import JobFolder

_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class GitState:
    """The repository in which the job was submitted; ``diff`` is what was changed since ``commit``, without secrets.

    ``untracked`` is the number of untracked files; ``cut`` is true if the stored diff was truncated.
    """

    commit: str
    branch: str = ""
    remote: str = ""
    diff: str = ""
    cut: bool = False
    untracked: int = 0

    def __str__(self) -> str:
        """Return it as text: ``main 1a2b3c4, with changes``."""
        changed = ", with changes" if self.diff else ", with new files" if self.untracked else ""
        return f"{self.branch} {self.commit[:10]}".strip() + changed


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """``packages`` maps distributions to versions; "" and None mean unknown."""

    python: str = ""
    executable: str = ""
    platform: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git: GitState | None = None

    def freeze(self) -> str:
        """Return the packages as a requirements.txt."""
        return "".join(map(_requirement, self.packages.items()))

    def __str__(self) -> str:
        """Return it as a requirements.txt with everything else in comments."""
        known = {"Python": self.python.partition(" ")[0], "at": self.executable, "on": self.platform,
                 "git": str(self.git) if self.git else "", "remote": self.git.remote if self.git else ""}  # fmt: skip
        return "".join(f"# {name} {value}\n" for name, value in known.items() if value) + self.freeze()


#: The environment of a job that has not started.
UNKNOWN = JobEnvironment()


def add(folder: JobFolder, **fields: Any) -> None:
    """Add fields to the stored environment of a job, from any thread of its supervisor. Raises OSError."""
    with _writing:
        known = dataclasses.asdict(dataclasses.replace(read(folder), **fields))
        files.keep(folder.environment_file, json.dumps(known, indent=1))


def read(folder: JobFolder) -> JobEnvironment:
    """Return the stored environment of a job."""
    try:
        return msgspec.convert(json.loads(folder.environment_file.read_text(encoding="utf-8")), JobEnvironment)
    except (OSError, ValueError, msgspec.ValidationError):
        return UNKNOWN


def _requirement(package: tuple[str, str]) -> str:
    name, version = package
    _, at, origin = version.partition(" @ ")
    return f"{name} @ {origin}\n" if at else f"{name}=={version}\n"

"""jupyter-scheduler as a peer: the extension of JupyterLab whose jobs are listed from SQLite.

It lies in an environment of its own in the user's cache directory, made from PyPI once. Where it cannot be had,
``problem`` says why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from distdl_jupyter.core.caches import cache_directory
from tests.benchmarks.launchers import SUBJECTS

VERSION = "2.12.1"


@dataclass(frozen=True)
class Scheduler:
    """The program that runs it, and where its tables lie."""

    python: Path
    scratch: Path
    problem: str

    @classmethod
    def made(cls, scratch: Path) -> Scheduler:
        """Return it, installed when it is not there yet."""
        folder = cache_directory() / f"peer-jupyter-scheduler-{VERSION}-{sys.version_info[0]}.{sys.version_info[1]}"
        python = folder / "bin" / "python"
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--no-input", f"jupyter-scheduler=={VERSION}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                return cls(python, scratch, (done.stderr.strip().splitlines() or ["pip failed"])[-1])
            (folder / "ready").touch()
        return cls(python, scratch, "")

    @property
    def versions(self) -> dict[str, str]:
        """What it is, for the table's head."""
        return {} if self.problem else {"jupyter-scheduler": VERSION}

    def lister(self, many: int) -> Callable[[], float]:
        """Return a function that lists so many jobs in a process of its own and returns the seconds without imports."""
        tables = self.scratch / f"scheduler-{many}.sqlite"
        self._run("make", tables, many)
        return partial(self._listed, tables, many)

    def _listed(self, tables: Path, many: int) -> float:
        return float(self._run("list", tables, many).splitlines()[-1])

    def _run(self, what: str, tables: Path, many: int) -> str:
        command = [str(self.python), str(SUBJECTS / "scheduled.py"), what, str(tables), str(many)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

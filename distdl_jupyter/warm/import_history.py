"""What is imported ahead: the modules that the last jobs have imported, without those that proved unfit for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distdl_jupyter.core import atomic_write
from distdl_jupyter.worker import import_recorder
from distdl_jupyter.worker.watch.frameworks import NOT_FORKED

#: How many jobs are remembered; what none of them has imported is forgotten.
_JOBS = 8
#: How often unfit modules are found, and everything imported anew, before nothing more is learned from these jobs.
_MOST = 12


class Learned:
    """The file of one environment. A file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = _read(path)
        self._jobs: list[list[str]] = [[str(name) for name in job] for job in data.get("jobs", ())]
        self._found = int(data.get("found", 0))
        #: Module -> why it must not be imported ahead.
        self.unfit: dict[str, str] = {str(name): str(why) for name, why in dict(data.get("unfit", {})).items()}

    def names(self) -> list[str]:
        """Return what to import, the most recent job's first, each job's in the order of its own imports."""
        wanted = dict.fromkeys(name for job in self._jobs for name in job)
        return [name for name in wanted if not self.is_unfit(name) and not _is_never(name)]

    def is_unfit(self, name: str) -> bool:
        """Say whether a module, or a package whose import is part of the module's, must not be imported ahead."""
        return any(name == other or name.startswith(f"{other}.") for other in self.unfit)

    def add(self, names: Iterable[str]) -> None:
        """Remember what one more job has imported."""
        job = list(names)
        others = [other for other in self._jobs if other != job]
        self._jobs = [job, *others][:_JOBS]
        self._write()

    def leave_out(self, names: Iterable[str], why: str) -> None:
        """Never import modules ahead again, nor what lies in them where they are packages."""
        self.unfit |= dict.fromkeys(names, why)
        self._found += 1
        if self._found >= _MOST:
            self._jobs, self._found = [], 0
        self._write()

    def _write(self) -> None:
        atomic_write.write(self._path, {"jobs": self._jobs, "unfit": self.unfit, "found": self._found})


def take_from(folder: Path) -> list[str]:
    """Return the same and take the files away: nobody else reads them."""
    found = of_job(folder)
    shutil.rmtree(import_recorder.folder_of(folder), ignore_errors=True)
    return found


def _is_never(name: str) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in NOT_FORKED)


def of_job(folder: Path) -> list[str]:
    """Return what the processes of a job have imported, as far as they have said so."""
    found: dict[str, None] = {}
    for path in sorted(import_recorder.folder_of(folder).glob("*.json")):
        data = _read(path)
        found |= dict.fromkeys(str(name) for name in data.get("modules", ()))
    return list(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}

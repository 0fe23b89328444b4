"""The folder of a job on this host: the job's own where this host sees it, else a copy that is removed at the end.

The supervisor has written a random text into the job's folder; whoever finds the same text there shares it. Nothing
here knows processes or the wire.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.node import permissions

DEFAULT_BASE = "~/.cache/distdl"
#: What ranks write; kept when a job ends without anybody who collects it.
KEPT = ("outputs", "results")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: What every copied folder has until it is collected.
_PARTS = ("code", *KEPT)


class Workdir(NamedTuple):
    """Where a job's files are; ``copied`` when the folder belongs to this agent alone."""

    folder: Path
    copied: bool


def find(job: str, folder: str, proof: tuple[str, str] | None, base: str) -> Workdir:
    """Return the job's own folder when it holds the proof (name, text), else a new one below ``base``.

    Raises OSError, also where others could write, and ValueError for a job or a proof whose name is no plain name.
    """
    if proof is not None and _holds(Path(folder), *proof):
        return Workdir(Path(folder), copied=False)
    return Workdir(_new(_jobs(base), plain(job)), copied=True)


def plain(name: str) -> str:
    """Return a name that is no path. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name.")
    return name


def _holds(folder: Path, name: str, text: str) -> bool:
    try:
        return (folder / plain(name)).read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _jobs(base: str) -> Path:
    return Path(base or DEFAULT_BASE).expanduser() / "jobs"


def _new(jobs: Path, job: str) -> Path:
    """Make a folder that no other agent has: several hosts may share this one's home, or be the same machine."""
    permissions.chosen(jobs.parent)
    permissions.own(jobs)
    for number in itertools.count(1):
        folder = jobs / (job if number == 1 else f"{job}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            break
    for name in _PARTS:
        (folder / name).mkdir(mode=0o700)
    return folder


def of_job(job: str, base: str) -> Iterator[Path]:
    """Yield the copied folders that agents of a job have left below ``base``, and nothing that only has their name."""
    folder = _jobs(base) / plain(job)
    for number in itertools.count(2):
        if not folder.is_dir():
            return
        if permissions.is_own(folder) and any((folder / name).is_dir() for name in _PARTS):
            yield folder
        folder = folder.with_name(f"{job}-{number}")


def remove(folder: Path) -> None:
    """Remove a copied folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def abandon(folder: Path) -> None:
    """Remove a copied folder that nobody collected; values and files that ranks have written stay."""
    kept = [name for name in KEPT if any((folder / name).glob("*"))]
    if not kept:
        remove(folder)
        return
    for entry in folder.iterdir():
        if entry.name not in kept:
            _remove_entry(entry)


def _remove_entry(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        remove(entry)
    else:
        entry.unlink(missing_ok=True)

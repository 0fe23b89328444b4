"""Azurite in a folder of the user's cache, one for each lock file: ``python -m tests.azurite.install`` puts it there.

With ``--there`` it only tells, by its exit code, whether it is there.

Its 365 MB stay out of the checkout, and a fresh clone with the same lock file finds them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
_FILES = ("package.json", "package-lock.json")
_PROGRAM = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")


def folder() -> Path:
    """Return where this version of Azurite is, or would be."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _FILES)).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "distdl" / f"azurite-{digest}"


@functools.cache
def program() -> Path:
    """Return Azurite's program for blobs, installing it where it is missing. Raises RuntimeError with the reason."""
    place = folder()
    if not (place / _PROGRAM).exists():
        _install(place)
    return place / _PROGRAM


def _install(place: Path) -> None:
    """Fill a folder beside its place and rename it, one process at a time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / _PROGRAM).exists():
            return
        with tempfile.TemporaryDirectory(prefix=f"{place.name}-", dir=place.parent) as temporary:
            for name in _FILES:
                shutil.copy(HERE / name, temporary)
            _npm(temporary)
            shutil.rmtree(place, ignore_errors=True)
            Path(temporary).rename(place)
            Path(temporary).mkdir()  # for the end of the with


def _npm(where: str) -> None:
    if shutil.which("npm") is None:
        raise RuntimeError("npm is not here")
    # No script of a package runs: the emulator for blobs needs none.
    command = ["npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"npm ci ended with {done.returncode}: {done.stdout.strip()[-300:]}")


if __name__ == "__main__":
    if "--there" in sys.argv:
        sys.exit(not (folder() / _PROGRAM).exists())
    try:
        program()
    except (RuntimeError, OSError) as error:
        sys.exit(f"Azurite was not installed: {error}")

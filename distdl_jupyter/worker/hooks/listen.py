"""Installs the hooks of a rank for the frameworks that training code imports, and disconnects at the end."""

from __future__ import annotations

from pathlib import Path

from distdl_jupyter.worker import pictures
from distdl_jupyter.worker.hooks import (
    autolog,
    child_processes,
    distributed,
    gpu_memory,
    horovod,
    keras,
    parallel,
    profile,
    steps,
    trainers,
)
from distdl_jupyter.worker.hooks.imports import PostImport, guarded, install
from distdl_jupyter.worker.sources import CellSources

_PARTS = (child_processes, gpu_memory, distributed, horovod, steps, profile, keras, trainers, autolog, pictures)


def start(sources: CellSources, code: Path) -> PostImport:
    """Install all hooks; call it once, before any user code is imported. ``code`` has the user's modules."""
    finder = install()
    for part in _PARTS:
        part.watch(finder)
    parallel.watch(finder, sources, code)
    return finder


def leave() -> None:
    """Disconnect from the other ranks, unless the code has done so."""
    horovod.leave()
    guarded("at the end", distributed.leave)

"""Importing ahead: one module after the other, with a look after each whether this process may still be forked."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import ModuleType

from distdl_jupyter.core import registry
from distdl_jupyter.warm import preconditions
from distdl_jupyter.warm.env_recorder import Recorder
from distdl_jupyter.worker.import_recorder import installed_roots

#: What a supervisor and a rank of this machine's cluster import in any case, besides its backend.
_OWN = (
    "distdl_jupyter.supervisor.__main__",
    "distdl_jupyter.clusters.local",
    "distdl_jupyter.clusters.agents.launcher_run",
    "distdl_jupyter.clusters.local_node",
    "distdl_jupyter.views.ended_cache",
    "distdl_jupyter.worker.rank",
    "distdl_jupyter.worker.failure",
    "distdl_jupyter.worker.watch.lost_peer",
    "cloudpickle",
    "multiprocessing.process",
    "runpy",
    "threadpoolctl",
)
#: Variables that keep libraries from starting threads at their import, as torch's compiler does in some
#: versions where Triton is installed; each job gets its own afterwards.
NO_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_WARM_POOL": "0"}


def own() -> tuple[str, ...]:
    """Return what a supervisor and a rank of this machine's cluster import in any case."""
    return (*_OWN, *registry.built_in("backends"))


class Unfit(Exception):
    """A module must not be imported ahead; this process, which has done so, must not be forked any more.

    ``others`` are the modules that import what makes it unfit, and so are as unfit as it is.
    """

    def __init__(self, name: str, why: str, others: Iterable[str] = ()) -> None:
        super().__init__(f"{name} {why}")
        self.names = (name, *sorted(set(others) - {name}))
        self.why = why


class Modules:
    """What this process has imported ahead."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.stamps = preconditions.Stamps()
        self._roots = (*installed_roots(), f"{_package()}{os.sep}")
        self._known = 0
        self._tried: set[str] = set()

    def load(self, name: str) -> None:
        """Import one module after the packages in which it lies, what cannot be imported left out. Raises Unfit.

        A package that is unfit itself is so found at once, and not once for each of its modules.
        """
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            one = ".".join(parts[:count])
            if not self.would_load(one):
                continue
            self._tried.add(one)
            with self.recorder, contextlib.suppress(BaseException):
                importlib.import_module(one)
            self._check(one)

    def would_load(self, name: str) -> bool:
        """Say whether ``load`` would do anything."""
        return name not in sys.modules and name not in self._tried

    def _check(self, name: str) -> None:
        loaded: list[ModuleType | None] = list(sys.modules.values())
        new = [module for module in loaded[self._known :] if module is not None]
        self._known = len(loaded)
        self.stamps.take(new)
        reads = self.recorder.unforkable_reads()
        if preconditions.threads() > 1:
            raise Unfit(name, "starts a thread when imported")
        if preconditions.gpu_in_use():
            raise Unfit(name, "opens a GPU when imported")
        if reads:
            others = {module.__name__ for module in new}.intersection(chain(*(read.importing for read in reads)))
            raise Unfit(name, f"reads {reads[0].what} when imported (in {reads[0].importing[0]})", others)
        if outside := self._outside(map(preconditions.file_of, new)):
            raise Unfit(name, f"imports {outside}, which is not an installed module")

    def _outside(self, files: Iterable[str]) -> str:
        return next((file for file in files if file and not file.startswith(self._roots)), "")


def _package() -> str:
    return str(Path(__file__).parents[1])

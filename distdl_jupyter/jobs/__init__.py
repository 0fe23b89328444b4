"""The facade of jobs: submit, list, attach, rerun, results, the queue of this machine.

``distdl_jupyter.jobs()`` lists the jobs: the module is callable, because a function named ``jobs`` would
shadow the package, or be shadowed by it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """A module that can be called."""

    def __call__(self) -> Any:
        """Return all jobs in the data directory of this user, newest first."""
        return importlib.import_module("distdl_jupyter.jobs.client").jobs()


sys.modules[__name__].__class__ = _CallableModule

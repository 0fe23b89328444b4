"""Clusters place, start, watch and stop the ranks of a job.

``distdl_jupyter.clusters()`` lists the clusters. The module is callable because a function and a package of the same
name would hide each other, depending on the order of imports.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """The callable type of this module."""

    def __call__(self) -> Any:
        """Return all clusters: this machine and the named ones. ``clusters()["lab"]`` is the cluster named lab."""
        return importlib.import_module("distdl_jupyter.clusters.handle").clusters()


sys.modules[__name__].__class__ = _CallableModule

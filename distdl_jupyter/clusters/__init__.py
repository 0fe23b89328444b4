"""Where ranks run: each cluster places, starts, watches and stops them.

``distdl_jupyter.clusters()`` lists the clusters: the module can be called, because a function of that name would hide
these rooms, or they it, depending on what was imported first.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Clusters(ModuleType):
    """This module."""

    def __call__(self) -> Any:
        """Return all clusters: this machine, and those that were named. ``clusters()["lab"]`` is one of them."""
        return importlib.import_module("distdl_jupyter.clusters.handle").clusters()


sys.modules[__name__].__class__ = _Clusters

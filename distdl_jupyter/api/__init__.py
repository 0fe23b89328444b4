"""Every call of the HTTP API as one typed function; ``calls`` is their table (see ``api.call``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.api.call import Call

#: Where all addresses are.
BASE = "/distdl/api"
_MODULES = ("clusters", "plugins", "jobs", "files", "sweeps", "source", "azure")


def calls() -> list[Call]:
    """Return all calls."""
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")
    from distdl_jupyter.api.call import CALLS

    return CALLS

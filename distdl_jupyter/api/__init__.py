"""Every call of the HTTP API as one typed function; ``calls`` is their table (see ``api.call``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.api.call import ApiCall

#: Where all addresses are.
BASE = "/distdl/api"
_MODULES = ("clusters", "jobs", "source", "azure")


def calls() -> list[ApiCall]:
    """Return all calls. They are imported here, because the extension must not delay the start of the server."""
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return importlib.import_module(f"{__name__}.call").CALLS  # type: ignore[no-any-return]

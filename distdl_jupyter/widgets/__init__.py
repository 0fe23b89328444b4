"""The widgets: a job's live panel, the form that starts one, the sign-in to Azure, the output of cells on ranks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.widgets.azure import azure_sign_in
    from distdl_jupyter.widgets.job import panel
    from distdl_jupyter.widgets.launch import launcher

__all__ = ["azure_sign_in", "launcher", "panel"]

_HOMES = {"azure_sign_in": "azure", "launcher": "launch", "panel": "job"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'distdl_jupyter.widgets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"distdl_jupyter.widgets.{home}"), name)

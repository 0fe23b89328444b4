"""The panel "Sign in to Azure" in a kernel: ``azure_sign_in()`` shows it as a cell's last value.

The page asks by messages what JupyterLab's sidebar asks over HTTP, and the same component draws both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anywidget

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.panels.assets import asset
from distdl_jupyter.panels.subshell import reachable
from distdl_jupyter.views import azure
from distdl_jupyter.views.to_json import to_json


class AzurePanel(anywidget.AnyWidget):
    """The panel on the page. Its text, which a notebook keeps, names nobody."""

    _esm = asset("azure.js")
    _css = asset("panels.css")

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(self._heard)
        reachable(self)

    def __repr__(self) -> str:
        return "Sign in to Azure: run this cell to see who is signed in."

    def _heard(self, _: Any, message: Mapping[str, Any], __: Any) -> None:
        if message.get("type") == "azure":
            self.send({"type": "answer", "id": message.get("id"), **answer(message)})


def answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a message (``ask`` and, for some, ``given``) and return ``value`` or ``error``. Never raises."""
    action = str(message.get("ask"))
    if action not in azure.ACTIONS:
        return {"error": {"message": f"The panel was asked for {action}, which it does not know.",
                          "hint": "Reload the page.", "field": ""}}  # fmt: skip
    try:
        return {"value": to_json(azure.perform(action, dict(message.get("given") or {})))}
    except DistDLError as error:
        return {"error": error.to_json()}


def azure_sign_in() -> AzurePanel:
    """Return the panel that shows who is signed in to Azure, and signs in and out. It never shows a token."""
    return AzurePanel()

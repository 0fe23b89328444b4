"""Clusters that get a name in a form, or lose it: what a page asks by a message, and what it is answered.

A page of JupyterLab asks the server instead; this is for a form that has nobody but its kernel. The form has chosen a
new cluster afterwards, and this machine after the chosen one was removed. What is refused changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter import cluster_configs, registry
from distdl_jupyter.cluster_handles import ClusterHandle, provision
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.views import plugins

if TYPE_CHECKING:
    from distdl_jupyter.form.model import FormModel


def kinds() -> list[dict[str, Any]]:
    """Return the kinds of clusters with their options as JSON schemas, and why one cannot be used here."""
    return [dataclasses.asdict(plugins.plugin_view("clusters", name)) for name in registry.names("clusters")]


def add(form: FormModel, name: str, kind: str, options: Mapping[str, Any]) -> None:
    """Give a kind with its options a name and choose it. Raises InvalidSpec, PluginUnavailable, ClusterRefused."""
    form.compute_target = cluster_configs.add(name, kind, options).name


def remove(form: FormModel, name: str) -> None:
    """Forget a cluster; the form falls back to this machine. Raises ClusterNotFound, ClusterRefused (jobs run)."""
    ClusterHandle(name).remove()
    if form.compute_target == name:
        form.compute_target = "local"
    else:
        form.look()


def answer(form: FormModel, message: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a message and return ``value``, or ``error`` with ``message``, ``hint`` and ``field``. Never raises.

    ``ask`` is ``"kinds"``; ``"choices"`` with ``kind``, ``option`` and the ``options`` so far; ``"add"`` with ``name``,
    ``kind``, ``options``; or ``"remove"`` with ``name``.
    """
    try:
        return {"value": _done(form, message)}
    except DistDLError as error:
        return {"error": error.to_json()}
    except Exception as error:  # noqa: BLE001 - the page waits, and a plug-in of somebody else may raise anything
        return {"error": {"message": f"{type(error).__name__}: {error}", "hint": "", "field": ""}}


def _done(form: FormModel, message: Mapping[str, Any]) -> Any:
    match message["ask"]:
        case "kinds":
            return kinds()
        case "choices":
            found = provision.choices(str(message["kind"]), str(message["option"]), dict(message["options"]))
            return [{**dataclasses.asdict(one), "label": one.label or one.value} for one in found]
        case "add":
            return add(form, str(message["name"]), str(message["kind"]), dict(message["options"]))
        case "remove":
            return remove(form, str(message["name"]))
        case other:
            raise DistDLError(f"The form was asked for {other}, which it does not know.", hint="Reload the page.")

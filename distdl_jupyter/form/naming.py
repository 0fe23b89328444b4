"""Clusters that get a name in a form, or lose it, as its page asks for.

A page of JupyterLab asks the server instead; this is for a form that has nobody but its kernel. The form has chosen a
new cluster afterwards, and this machine after the chosen one was removed. What is refused changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from distdl_jupyter import cluster_configs, registry
from distdl_jupyter.cluster_handles import ClusterHandle, provision
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


def choices(kind: str, option: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what an option may be, given the ``options`` so far. Raises DistDLError."""
    found = provision.choices(kind, option, dict(options))
    return [{**dataclasses.asdict(one), "label": one.label or one.value} for one in found]


def calls(form: FormModel) -> dict[str, Callable[..., Any]]:
    """Return what the form's page may ask for, by name."""
    return {
        "clusters.kinds": kinds,
        "clusters.choices": choices,
        "clusters.add": partial(add, form),
        "clusters.remove": partial(remove, form),
    }

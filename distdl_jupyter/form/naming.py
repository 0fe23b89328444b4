"""Clusters that get a name in a form, or lose it, as its page asks for.

A page of JupyterLab asks the server instead; this is for a form that has nobody but its kernel. What is refused changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.cluster_handles import ClusterHandle, provision
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.views import plugins

if TYPE_CHECKING:
    from distdl_jupyter.views.schema import Plugin


def kinds() -> list[Plugin]:
    """Return the kinds of clusters with their options as JSON schemas, and why one cannot be used here."""
    return [plugins.plugin_view("clusters", name) for name in registry.names("clusters")]


def add(name: str, kind: str, options: Mapping[str, Any]) -> None:
    """Give a kind with its options a name. Raises InvalidSpec, PluginUnavailable, ClusterRefused."""
    cluster_configs.add(name, kind, options)


def remove(name: str) -> None:
    """Forget a cluster. Raises ClusterNotFound, ClusterRefused (jobs run)."""
    ClusterHandle(name).remove()


#: What a page may ask for, by name.
CALLS: dict[str, Callable[..., object]] = {
    "clusters.kinds": kinds,
    "clusters.choices": provision.choices,
    "clusters.add": add,
    "clusters.remove": remove,
}

"""The facade of clusters: what there is, how each stands now, and what a user does with those of his own.

Python, the command line, the server and the forms all come here. It asks a cluster's plug-in and the file of named
clusters; it knows no screen, no HTTP and nothing of how a cluster of any kind works.
"""

from __future__ import annotations

from distdl_jupyter.cluster_handles.cluster_list import every, find, kinds, remove
from distdl_jupyter.cluster_handles.handle import (
    Checks,
    Choices,
    ClusterHandle,
    ClusterList,
    Nodes,
    add_cluster,
    clusters,
)
from distdl_jupyter.cluster_handles.status import ClusterStatus, check, look, look_at_all

__all__ = [
    "Checks",
    "Choices",
    "ClusterHandle",
    "ClusterList",
    "ClusterStatus",
    "Nodes",
    "add_cluster",
    "check",
    "clusters",
    "every",
    "find",
    "kinds",
    "look",
    "look_at_all",
    "remove",
]

"""The facade of clusters: what there is, how each stands now, and what a user does with those of his own.

Python, the command line, the server and the forms all come here. It asks a cluster's plug-in and the file of named
clusters; it knows no screen, no HTTP and nothing of how a cluster of any kind works.
"""

from __future__ import annotations

from distdl_jupyter.places.handle import Checks, Choices, Nodes, Place, Places, add_cluster, clusters
from distdl_jupyter.places.listed import every, find, kinds, remove
from distdl_jupyter.places.standing import Standing, check, look, look_at_all

__all__ = [
    "Checks",
    "Choices",
    "Nodes",
    "Place",
    "Places",
    "Standing",
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

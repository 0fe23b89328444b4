"""The contract of a cluster that starts jobs: what it says of itself, how jobs run on it, how they end."""

from __future__ import annotations

from distdl_jupyter.testing.description import DescriptionContract
from distdl_jupyter.testing.ending import EndingContract
from distdl_jupyter.testing.running import RunningContract


class ClusterContract(DescriptionContract, RunningContract, EndingContract):
    """Subclass it, set ``name`` and ``options``."""

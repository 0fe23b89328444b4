"""The contracts that every backend and every cluster must hold: ours, and those of other packages.

A package with a plug-in of its own adds one test file and needs nothing but pytest:

    from distdl_jupyter.testing import BackendContract, ClusterContract

    class TestMyBackend(BackendContract):
        label = "mine"                              # as users write it: -b mine

    class TestMyCluster(ClusterContract):
        name = "mine"                               # the entry point below distdl_jupyter.clusters
        options = {"hosts": "one,two"}              # as users write them

        @pytest.fixture(autouse=True)
        def _machines(self): ...                    # start the machines that the options name

Nothing is simulated: jobs of two processes are placed, started, watched, stopped and collected, in a data directory of
their own, and a process that holds a job is killed. ``node_count`` and ``process_count_per_node`` say how a job is
spread, ``timeout`` how many seconds anything may take.

The methods that the tests call are described in ``distdl_jupyter.clusters.base``.
"""

import sys

if "pytest" in sys.modules:
    # Before they are imported: their asserts then show the values that differ.
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{name}" for name in ("backend", "cluster", "sample")))

from distdl_jupyter.testing.backend import BackendContract
from distdl_jupyter.testing.cluster import ClusterContract

__all__ = ["BackendContract", "ClusterContract"]

"""Contract tests for every backend and cluster, built-in or from another package.

To test a plug-in, add one test file to its package; only pytest is needed:

    from distdl_jupyter.testing import BackendContract, ClusterContract

    class TestMyBackend(BackendContract):
        label = "mine"                              # as users write it: -b mine

    class TestMyCluster(ClusterContract):
        name = "mine"                               # the entry point below distdl_jupyter.clusters
        options = {"hosts": "one,two"}              # as users write them

        @pytest.fixture(autouse=True)
        def _machines(self): ...                    # start the machines that the options name

Nothing is simulated: the tests place, start, monitor, stop and collect jobs of two processes, and kill a process that
supervises a job. The jobs are stored in the data directory (``DISTDL_HOME``). ``node_count`` and
``process_count_per_node`` set the layout of a job, ``timeout`` the time limit of each step in seconds.
``distdl_jupyter.clusters.base`` documents the methods that the tests call.
"""

import sys

if "pytest" in sys.modules:
    # Before the imports below, so that pytest rewrites their asserts to show the values that differ.
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{name}" for name in ("backend", "cluster", "sample")))

from distdl_jupyter.testing.backend import BackendContract
from distdl_jupyter.testing.cluster import ClusterContract

__all__ = ["BackendContract", "ClusterContract"]

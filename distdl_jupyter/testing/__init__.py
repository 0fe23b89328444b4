"""What every backend and every cluster must hold: ours, and those of other packages.

A package with a plug-in of its own adds one test file and needs nothing but pytest:

    from distdl_jupyter.testing import BackendContract, ClusterContract, DataContract, QueueContract

    class TestMyBackend(BackendContract):
        label = "mine"                              # as users write it: -b mine

    class TestMyCluster(ClusterContract):
        name = "mine"                               # the entry point below distdl_jupyter.clusters
        options = {"hosts": "one,two"}              # as users write them

        @pytest.fixture(autouse=True)
        def _machines(self): ...                    # bring up what the options speak of

    class TestMyData(DataContract):                 # where data is brought to nodes (``Cluster.stages``)
        name = "mine"

    class TestMyQueue(QueueContract):               # where jobs can wait for their machines
        name = "mine"
        options = {"partition": "full"}             # with these a job of two processes waits

Nothing is simulated: jobs of two processes are placed, started, listened to, stopped and collected, in a data
directory of their own, and a process that holds a job is killed to see what becomes of it. ``node_count`` and
``process_count_per_node`` say how a job is spread, ``timeout`` how many seconds anything may take.

What the tests ask for stands in ``distdl_jupyter.clusters.base``; each test's docstring says why it matters.
"""

import sys

if "pytest" in sys.modules:
    # Before they are imported: their asserts then show the values that differ.
    sys.modules["pytest"].register_assert_rewrite(
        *(
            f"{__name__}.{name}"
            for name in ("backend", "description", "waiting", "queueing", "running", "ending", "data")
        )
    )

from distdl_jupyter.testing.backend import BackendContract
from distdl_jupyter.testing.cluster import ClusterContract
from distdl_jupyter.testing.data import DataContract
from distdl_jupyter.testing.description import DescriptionContract
from distdl_jupyter.testing.queueing import QueueContract
from distdl_jupyter.testing.waiting import WaitingContract

__all__ = [
    "BackendContract",
    "ClusterContract",
    "DataContract",
    "DescriptionContract",
    "QueueContract",
    "WaitingContract",
]

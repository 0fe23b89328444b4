"""Executors of Spark hold the contract of clusters."""

from distdl_jupyter.testing import ClusterContract


class TestLocalCluster(ClusterContract):
    name = "spark"
    node_count = 2
    process_count_per_node = 1
    options = {"master": "local-cluster[2,1,1024]"}  # noqa: RUF012

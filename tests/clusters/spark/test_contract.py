"""Executors of Spark hold the contract of clusters: on two hosts, by their master and by Spark Connect, and on one."""

import pytest

from distdl_jupyter.clusters import spark
from distdl_jupyter.testing import ClusterContract
from tests.clusters.spark.conftest import CORES
from tests.contracts import QueueContract
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(300)]


@pytest.mark.full
class TestConnect(ClusterContract):
    name = "spark"
    node_count = 2
    process_count_per_node = 1

    @pytest.fixture(autouse=True)
    def _on(self, connect_server):
        self.options = {"remote": connect_server}


@pytest.mark.full
@pytest.mark.readme("Spark clusters")
class TestTwoHosts(ClusterContract):
    name = "spark"
    node_count = 2
    process_count_per_node = 1

    @pytest.fixture(autouse=True)
    def _on(self, spark_hosts, monkeypatch):
        self.options = spark_hosts.options
        monkeypatch.setattr(spark, "_CHECK_SECONDS", 150.0)  # beside other tests, a driver starts slowly


@pytest.mark.full
class TestNoRoom(QueueContract):
    name = "spark"

    @pytest.fixture(autouse=True)
    def _on(self, spark_hosts):
        self.options = {**spark_hosts.options, "cpus_per_process": CORES + 1}

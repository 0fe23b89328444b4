"""Nodes of a Ray cluster hold the contract of all clusters."""

import pytest

from distdl_jupyter.testing import ClusterContract
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.full, pytest.mark.timeout(300)]


@pytest.mark.readme("Ray")
class TestOnTwoNodes(ClusterContract):
    name = "ray"
    node_count = 2
    process_count_per_node = 1

    @pytest.fixture(autouse=True)
    def _on(self, ray_nodes):
        self.options = {"address": ray_nodes.address}

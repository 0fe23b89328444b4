"""Hosts over ssh hold the contract of all clusters: two ranks on one host, and one on each of two."""

import pytest

from distdl_jupyter.testing import ClusterContract
from tests.hosts import needs_hosts

pytestmark = pytest.mark.timeout(300)


class OnHosts(ClusterContract):
    name = "ssh"

    @pytest.fixture(autouse=True)
    def _on(self, three_hosts):
        self.options = three_hosts.options()


@needs_hosts
class TestSsh(OnHosts):
    pass


@needs_hosts
class TestSshOnTwoHosts(OnHosts):
    node_count = 2
    process_count_per_node = 1

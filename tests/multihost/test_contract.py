"""Hosts over ssh hold the contract of all clusters: one rank on each of two hosts, and two on one."""

import pytest

from distdl_jupyter.testing import ClusterContract
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(300)]


class OnHosts(ClusterContract):
    name = "ssh"

    @pytest.fixture(autouse=True)
    def _on(self, three_hosts):
        self.options = three_hosts.options()


@pytest.mark.readme("SSH hosts")
class TestOnTwoHosts(OnHosts):
    node_count = 2
    process_count_per_node = 1


@pytest.mark.full
class TestOnOneHost(OnHosts):
    pass

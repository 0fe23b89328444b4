"""Hosts over ssh and Slurm hold the contract of all clusters: two ranks on one host, and one on each of two."""

import pytest

from distdl_jupyter.testing import ClusterContract, WaitingContract
from tests.hosts import needs_hosts
from tests.slurm import needs_slurm, slurm, two_nodes  # noqa: F401 - fixtures

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


@needs_slurm
@pytest.mark.usefixtures("slurm")
class TestSlurmOnTwoNodes(ClusterContract):
    name = "slurm"
    node_count = 2
    process_count_per_node = 1


@needs_slurm
@pytest.mark.usefixtures("slurm")
class TestSlurmWaits(WaitingContract):
    name = "slurm"
    options = {"extra": "--begin=now+1hour"}  # noqa: RUF012


@needs_slurm
@pytest.mark.usefixtures("slurm")
class TestSlurmHolds(WaitingContract):
    name = "slurm"
    options = {"extra": "--hold"}  # noqa: RUF012

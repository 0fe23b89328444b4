"""A real Slurm holds the contracts of clusters, of those that queue, and of those that bring data to their nodes."""

import pytest

from distdl_jupyter.clusters.agents import links
from distdl_jupyter.clusters.slurm import cluster
from distdl_jupyter.testing import ClusterContract
from tests.contracts import DataContract, QueueContract
from tests.slurm import needs_slurm

pytestmark = [pytest.mark.full, needs_slurm, pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_stays")]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Ask Slurm often, and wait less for files of nodes that share this machine's disk."""
    monkeypatch.setattr(cluster, "_QUERY_SECONDS", 0.3)
    monkeypatch.setattr(cluster, "_FAST_QUERY_SECONDS", 0.1)
    monkeypatch.setattr(links, "GRACE_SECONDS", 1.0)


@pytest.mark.readme("Slurm")
class TestTwoNodes(ClusterContract):
    name = "slurm"
    node_count = 2
    process_count_per_node = 1


class TestBeginsLater(QueueContract):
    name = "slurm"
    options = {"extra": "--begin=now+1hour"}  # noqa: RUF012


class TestData(DataContract):
    name = "slurm"
    node_count = 2

    @pytest.fixture(autouse=True)
    def _data(self, slurm, tmp_path, monkeypatch):
        monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
        self.options = slurm.options(data_directory=str(tmp_path / "nodes"))

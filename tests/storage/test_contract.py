"""Every cluster that brings data to its nodes holds the contract of doing so."""

import pytest

from distdl_jupyter.testing import DataContract
from tests.hosts import needs_hosts
from tests.slurm import needs_slurm, slurm, two_nodes  # noqa: F401


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


class TestLocal(DataContract):
    name = "local"


class TestLocalNodes(DataContract):
    name = "local"
    node_count = 2
    process_count_per_node = 1


@needs_hosts
class TestHosts(DataContract):
    name = "ssh"
    node_count = 2

    @pytest.fixture(autouse=True)
    def _hosts(self, three_hosts, tmp_path):
        self.options = three_hosts.options(directory=str(tmp_path / "hosts"))


@needs_slurm
class TestSlurm(DataContract):
    name = "slurm"
    node_count = 2

    @pytest.fixture(autouse=True)
    def _slurm(self, slurm, tmp_path):  # noqa: F811
        self.options = slurm.options(data_directory=str(tmp_path / "nodes"))

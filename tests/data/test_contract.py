"""This machine and SSH hosts hold the contract of bringing data to nodes; Slurm does so in its own folder."""

import pytest

from tests.contracts import DataContract
from tests.hosts import needs_hosts


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


class TestLocal(DataContract):
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

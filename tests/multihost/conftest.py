"""Named clusters of real hosts, with Jupyter's configuration in a folder of the test."""

import pytest

from distdl_jupyter.clusters import cluster_configs
from tests.hosts import missing


@pytest.fixture(autouse=True)
def jupyter_folders(tmp_path, monkeypatch):
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / f"jupyter-{kind.lower()}"))


@pytest.fixture
def lab(three_hosts):
    """Three hosts as the cluster ``lab``, for tests that leave the hosts as they are."""
    cluster_configs.add("lab", "ssh", three_hosts.options())
    return three_hosts


@pytest.fixture
def lab_of(hosts_of):
    """Make hosts for one test and name them ``lab``."""

    def make(count=2, options=None, **how):
        hosts = hosts_of(count, **how)
        cluster_configs.add("lab", "ssh", hosts.options(**(options or {})))
        return hosts

    return make


def pytest_collection_modifyitems(items):
    """What needs hosts says so where there can be none."""
    why = missing()
    if why:
        for item in items:
            if "/multihost/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=why))

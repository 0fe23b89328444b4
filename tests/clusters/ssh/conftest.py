"""A named cluster of real hosts for one test."""

import pytest

from tests.clusters.ssh.lab import Lab


@pytest.fixture
def lab_of(hosts_of, tmp_path, monkeypatch):
    """Make a lab for one test: ``lab_of(2, directory=...)``; the cluster's name is gone afterwards."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))

    def make(count=2, private=None, **options):
        return Lab(hosts_of(count, private=private, own_processes=True), **options)

    return make

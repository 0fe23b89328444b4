"""What these tests share: a configuration of their own, and a rack of machines that is a plug-in."""

import pytest

from tests import plugin


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def rack(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, plugin.RACK, {"clusters": {"rack": "RackCluster"}})
    yield
    plugin.forget()

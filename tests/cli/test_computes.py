"""``distdl clusters compute`` as a terminal runs it: with a kind of another package, and with Azure ML's stand-in."""

import pytest

from tests import plugin
from tests.cli.test_clusters import distdl

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def forge(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield
    plugin.forget()


def test_machines_are_created_and_deleted_after_an_agreement(forge):
    assert "No cluster has machines that distdl can" in distdl("compute", "list")
    distdl("add", "lab", "forge")
    assert "--max-nodes" in distdl("compute", "create", "lab", "--help")
    assert "have not been created yet" in distdl("compute", "list")
    refused = distdl("compute", "create", "lab", "--size", "small", code=2)
    assert "needs confirmation. Add --yes" in refused
    made = distdl("compute", "create", "lab", "--size", "small", "--max-nodes", 4, "--min-nodes", 2, "--yes", "--wait")
    assert "Machines of lab: size=small, max_nodes=4, min_nodes=2. 2 nodes keep running and cost money" in made
    assert "lab is ready" in made
    assert "2 nodes cost money: 1.00 USD/h" in distdl("compute", "list")
    assert "needs confirmation" in distdl("compute", "delete", "lab", code=2)
    assert "are being deleted" in distdl("compute", "delete", "lab", "-y")
    assert "distdl cannot create or delete the machines of local." in distdl("compute", "sizes", "local", code=2)

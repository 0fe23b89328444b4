"""``distdl clusters compute`` as a terminal runs it: with a kind of another package, and with Azure ML's stand-in."""

import pytest

from tests import plugin
from tests.cli.test_clusters import distdl
from tests.standin.computes import SUBSCRIPTION, Computes
from tests.standin.prices import Prices

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def forge(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield
    plugin.forget()


def test_machines_are_made_scaled_and_ended_after_an_agreement(forge):
    assert "No cluster has machines that distdl can" in distdl("compute", "list")
    distdl("add", "lab", "forge")
    assert "--max-nodes" in distdl("compute", "create", "lab", "--help")
    assert "have not been created yet" in distdl("compute", "list")
    refused = distdl("compute", "create", "lab", "--size", "small", code=2)
    assert "needs confirmation. Add --yes" in refused
    made = distdl("compute", "create", "lab", "--size", "small", "--max-nodes", 4, "--yes", "--wait")
    assert "Machines of lab: size=small, max_nodes=4." in made
    assert "lab is ready" in made
    assert "2 nodes keep running and cost money" in distdl("compute", "scale", "lab", "--min-nodes", 2, "--yes")
    assert "2 nodes cost money: 1.00 USD/h" in distdl("compute", "list")
    assert "needs confirmation" in distdl("compute", "delete", "lab", code=2)
    assert "are being deleted" in distdl("compute", "delete", "lab", "-y")
    assert "Nothing to change" in distdl("compute", "scale", "lab", code=2)
    assert "distdl cannot create or delete the machines of local." in distdl("compute", "sizes", "local", code=2)


def test_a_compute_cluster_of_azure_ml_is_made_and_ended(signed_in):
    Prices(signed_in.server)
    service = Computes(signed_in.server, signed_in.login)
    place = ("--subscription-id", SUBSCRIPTION, "--resource-group", "vision", "--workspace", "ws1")
    distdl("add", "gpu", "azureml", *place, "--compute", "gpu")
    assert "Standard_NC4as_T4_v3" in distdl("compute", "sizes", "gpu")
    made = distdl("compute", "create", "gpu", "--vm-size", "Standard_NC4as_T4_v3", "--max-nodes", 2, "-y")
    assert "Machines of gpu: vm_size=Standard_NC4as_T4_v3, max_nodes=2." in made
    assert "Standard_NC4as_T4_v3, 0 to 2 nodes" in distdl("compute", "list", "gpu")
    service.bring_up("gpu", 2)
    listed = distdl("compute", "list")
    assert "2 of 2 up" in listed
    assert "2 nodes cost money: 1.00 USD/h" in listed
    shown = distdl("show", "gpu")
    assert "tvmps_00_d" in shown
    assert "1 × T4" in shown
    distdl("compute", "delete", "gpu", "-y")
    assert not service.computes

"""``ml``: a workspace of Azure ML on this machine, with a compute cluster and somebody signed in."""

from __future__ import annotations

import pytest

from distdl_jupyter.clusters.azureml import run
from tests.azurite.fixtures import azurite, blob_proxy  # noqa: F401
from tests.standin.computes import Compute, Computes
from tests.standin.ml import COMPUTE, GROUP, WORKSPACE, MachineLearning
from tests.standin.prices import Prices

_BODY = {
    "location": "westeurope",
    "properties": {
        "computeType": "AmlCompute",
        "properties": {
            "osType": "Linux",
            "vmSize": "Standard_DS3_v2",
            "vmPriority": "Dedicated",
            "scaleSettings": {"minNodeCount": 0, "maxNodeCount": 2, "nodeIdleTimeBeforeScaleDown": "PT10M"},
        },
    },
}


@pytest.fixture
def ml(signed_in, azurite, tmp_path, monkeypatch):  # noqa: F811
    """A workspace whose jobs run here, with short pauses between requests."""
    monkeypatch.setattr(run, "_POLL_SECONDS", 0.2)
    monkeypatch.setattr(run, "_SETTLE_SECONDS", 3.0)
    signed_in.blob_at(azurite.template)
    Prices(signed_in.server)
    computes = Computes(signed_in.server, signed_in.login)
    computes.computes[GROUP, WORKSPACE, COMPUTE] = Compute(_BODY, "Succeeded")
    service = MachineLearning(signed_in.server, azurite, tmp_path / "ml", signed_in.login)
    yield service
    service.close()

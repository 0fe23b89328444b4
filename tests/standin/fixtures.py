"""``azure``: the stand-in with the product pointed to it, by the settings that a user would write."""

from __future__ import annotations

import json

import pytest

from tests.standin import certificate
from tests.standin.server import Server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return certificate.make(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def trusted(certificates, monkeypatch):
    """Let this process and what it starts trust the stand-in, as one does for a company's own proxy."""
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(certificates[0]))


@pytest.fixture
def azure_server(certificates, trusted):
    """A server without any service yet."""
    server = Server(*map(str, certificates))
    yield server
    server.close()
    assert not server.surprises, f"nobody expected {server.surprises}"


@pytest.fixture
def azure_settings(tmp_path, monkeypatch):
    """An own folder for Jupyter's configuration."""
    folder = tmp_path / "jupyter-config"
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(folder))
    return folder


def cloud_file(folder, address, blob="https://{account}.blob.invalid"):
    """Write the description of a cloud whose services are all at ``address``; return its path."""
    path = folder / "cloud.json"
    told = {
        "name": "StandIn", "authority": address, "resource_manager": address, "blob": blob, "ml_audience": address,
        "portal": address, "prices": f"{address}/api/retail/prices",
    }  # fmt: skip
    path.write_text(json.dumps(told))
    return path

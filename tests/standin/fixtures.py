"""``azure``: the stand-in with the product pointed to it, by the settings that a user would write.

``signed_in`` adds an identity. All tests know both; other services are added by ``azure.server.route``.
"""

from __future__ import annotations

import gc
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from distdl_jupyter.azure import identity, prices, settings
from tests.standin import certificate
from tests.standin.login import CLIENT, SECRET, TENANT, Login
from tests.standin.server import Server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return certificate.make(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def connections():
    """Azure's SDK leaves its connections to the garbage collector: it shall not find them in another file's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def trusted(certificates, connections, monkeypatch):
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
        "name": "StandIn",
        "authority": address,
        "resource_manager": address,
        "blob": blob,
        "ml_audience": address,
        "portal": address,
        "prices": f"{address}/api/retail/prices",
    }
    path.write_text(json.dumps(told))
    return path


@dataclass
class Azure:
    """The stand-in as tests use it. Add services by ``server.route``, or by a class that takes the server."""

    server: Server
    login: Login
    cloud: Path

    def blob_at(self, address):
        """Let Blob be somewhere else, such as at Azurite: an address that holds ``{account}``."""
        self.cloud.write_text(json.dumps({**json.loads(self.cloud.read_text()), "blob": address}))


@pytest.fixture
def azure(azure_server, azure_settings, tmp_path, monkeypatch):
    """Entra ID alone, and the settings that point to it. Nobody is signed in, and no variable speaks of Azure.

    The home directory, with azure-identity's tokens and our cache of prices, is the test's own.
    """
    (home := tmp_path / "home").mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    prices._problems.clear()
    for name in [name for name in os.environ if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))]:
        monkeypatch.delenv(name)
    path = cloud_file(tmp_path, azure_server.address)
    settings.change(cloud=str(path))
    identity.clear_cache()
    yield Azure(azure_server, Login(azure_server), path)
    identity.sign_out()  # Nobody is waited for any more.
    identity.clear_cache()


@pytest.fixture
def signed_in(azure, monkeypatch):
    """An app registration's secret in the environment: every process that starts now is signed in as that app."""
    monkeypatch.setenv("AZURE_TENANT_ID", TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", CLIENT)
    monkeypatch.setenv("AZURE_CLIENT_SECRET", SECRET)
    settings.change(credential="default")
    return azure

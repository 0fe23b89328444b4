"""``azurite``, one for a room's tests, and ``blob_proxy`` before it, anew for every test.

A folder's conftest imports them.
"""

from __future__ import annotations

import pytest

from tests.azurite import install
from tests.azurite.proxy import Proxy
from tests.azurite.server import Azurite


@pytest.fixture(scope="session")
def azurite(certificates):
    """Azure Blob on this machine; its certificate is the one of ``trusted``."""
    try:
        install.program()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"Azurite is not here and was not installed: {error}")
    server = Azurite(*certificates)
    yield server
    server.close()


@pytest.fixture
def blob_proxy(azurite, certificates):
    """A proxy before Azurite to which faults can be added."""
    proxy = Proxy(azurite, *certificates)
    yield proxy
    proxy.close()

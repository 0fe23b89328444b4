import os

import pytest

from tests.azurite.fixtures import azurite, blob_proxy  # noqa: F401
from tests.data.stage import container, large, stage  # noqa: F401
from tests.standin.fixtures import certificates, connections, trusted  # noqa: F401


@pytest.fixture
def blob(signed_in, azurite):  # noqa: F811
    """Azurite as the cloud's Blob, and an app that is signed in."""
    signed_in.blob_at(azurite.template)
    signed_in.azurite = azurite
    signed_in.settings_folder = os.environ["JUPYTER_CONFIG_DIR"]
    return signed_in

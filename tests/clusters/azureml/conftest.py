"""``ml``: a workspace of Azure ML on this machine, with somebody signed in."""

from __future__ import annotations

import pytest

from tests.azurite.fixtures import azurite  # noqa: F401
from tests.standin.fixtures import (  # noqa: F401
    azure,
    azure_server,
    azure_settings,
    certificates,
    signed_in,
    trusted,
)
from tests.standin.ml import MachineLearning


@pytest.fixture
def ml(signed_in, azurite, tmp_path):  # noqa: F811
    """A workspace whose jobs run here."""
    signed_in.blob_at(azurite.template)
    service = MachineLearning(signed_in.server, azurite, tmp_path / "ml", signed_in.login)
    yield service
    service.close()

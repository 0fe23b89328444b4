"""A job folder for the tests of ranks."""

import pytest

from tests.worker.ranks import Folder


@pytest.fixture
def folder(tmp_path):
    """An empty job folder."""
    return Folder(tmp_path / "20261121-024912-k3f9")

"""A job folder for the tests of ranks."""

import pytest

from distdl_jupyter.core.store import create_id
from tests.worker.ranks import Folder


@pytest.fixture
def folder(tmp_path):
    """An empty job folder."""
    return Folder(tmp_path / create_id())

"""A job folder for the tests of ranks."""

import pytest

from distdl_jupyter.core.store import new_id
from tests.worker.ranks import Folder


@pytest.fixture
def folder(tmp_path):
    """An empty job folder."""
    return Folder(tmp_path / new_id())

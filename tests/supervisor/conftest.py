"""The badly behaved clusters, installed as another package."""

from pathlib import Path

import pytest

from distdl_jupyter.core.store import JobFolder
from tests import plugin
from tests.supervisor import fakes


@pytest.fixture
def bad_clusters(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, Path(fakes.__file__).read_text(), fakes.POINTS)
    yield
    plugin.forget()


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)

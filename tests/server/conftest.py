"""A real Jupyter server with only this extension, its configuration and data in folders of the test."""

import pytest

from tests.server.running import QUICK, serve
from tests.widgets import recorded


@pytest.fixture(autouse=True)
def jupyter_folders(tmp_path, monkeypatch):
    """Own folders for everything Jupyter keeps."""
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / f"jupyter-{kind.lower()}"))


@pytest.fixture
def root(tmp_path):
    """The folder that the server shows."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    return folder


@pytest.fixture
def server(root):
    """The running server."""
    with serve(root) as running:
        yield running


@pytest.fixture
def quick(root):
    """A server that looks and says that it is alive often."""
    with serve(root, traits=QUICK) as server:
        yield server


@pytest.fixture
def story():
    """A job that runs, as its events tell it."""
    told = recorded.begin(10)
    told.set_up()
    yield told
    told.close()

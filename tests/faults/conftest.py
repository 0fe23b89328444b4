"""A server of the extension for the tests that injure it."""

import pytest

from tests.server.running import serve


@pytest.fixture
def server(tmp_path, monkeypatch):
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / f"jupyter-{kind.lower()}"))
    (tmp_path / "notebooks").mkdir()
    with serve(tmp_path / "notebooks") as running:
        yield running


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A folder without modules that would travel with each job."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

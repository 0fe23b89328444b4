"""A server of the extension for the tests that injure it, and the end of what they leave running."""

import pytest

from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client
from tests.conftest import until_gone
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


@pytest.fixture
def ended(distdl_home):
    """End what still runs after a test."""
    yield
    for job in client.jobs():
        if not job.state.ended:
            end(job)


def end(job):
    """Cancel a job, of which nothing may be left then."""
    job.cancel(now=True)
    assert job.wait(30).state is State.CANCELED
    assert not until_gone(job.id)

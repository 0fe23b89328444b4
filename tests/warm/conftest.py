"""Every job of these tests starts warm, from the ready template of this worker, unless its test says otherwise."""

import pytest

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node.job import WARM_NOTICE
from distdl_jupyter.warm import start as warm_start
from tests.conftest import until_gone
from tests.starting import revive


@pytest.fixture(autouse=True)
def start(monkeypatch):
    """Warm, even when the jobs of all other tests start cold."""
    monkeypatch.delenv("DISTDL_WARM", raising=False)


@pytest.fixture
def distdl_home(distdl_home, start):
    """The test's own data directory, and a ready template: an earlier test may have ended it."""
    revive()
    return distdl_home


@pytest.fixture
def own_home(start, tmp_path, monkeypatch):
    """A data directory whose template is the test's own and ends with it."""
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("DISTDL_WARM_DIR")
    yield tmp_path / "own"
    warm_start.stop(warm_start.get_template_files())
    for job_id in JobStore().list_ids():
        assert not until_gone(job_id)


def is_warm(job):
    return any(WARM_NOTICE in str(line) for line in job.logs())


def assert_warm(*jobs):
    for job in jobs:
        assert is_warm(job), cold_reason(job) or "cold without a reason"


def cold_reason(job):
    return next((note["text"] for note in job.view().notes if note.get("code") == "cold-start"), "")

"""What all tests share: an own data directory, and the proof that no process of a job outlives its test."""

import os
import time

import pytest

from distdl_jupyter.node import processes
from distdl_jupyter.node.devices import cores
from tests.hosts import hosts_of, three_hosts  # noqa: F401 - fixtures
from tests.installation import installed, wheel  # noqa: F401 - fixtures
from tests.plugin import rack  # noqa: F401 - a fixture
from tests.standin.fixtures import (  # noqa: F401
    azure,
    azure_server,
    azure_settings,
    certificates,
    connections,
    signed_in,
    trusted,
)

pytest_plugins = ("tests.selection", "tests.starting", "tests.faults.frame")


@pytest.fixture(scope="session", autouse=True)
def isolated_jupyter(tmp_path_factory):
    """Separate Jupyter and IPython folders for the run, so that it leaves those of the user alone.

    Kernels, servers and jobs inherit these variables. A test that needs empty folders sets its own.
    """
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "config"))
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield


@pytest.fixture(autouse=True)
def distdl_home(tmp_path, tmp_path_factory, monkeypatch):
    """An own data directory and an own queue for every test; afterwards nothing of its jobs may be alive."""
    home = tmp_path / "distdl-home"
    monkeypatch.setenv("DISTDL_HOME", str(home))
    queue = tmp_path_factory.mktemp("queue")
    monkeypatch.setenv("DISTDL_QUEUE", str(queue))
    # It is there already: after a loss no job would start while others of this user live, as those of other tests do.
    (queue / f"distdl-queue-{os.getuid()}").mkdir(mode=0o755)
    yield home
    folders = list((home / "jobs").glob("*-*-*")) if (home / "jobs").exists() else []
    for folder in folders:
        left = until_gone(folder.name)
        if left:
            processes.kill_job(folder.name)
        assert not left, f"processes {left} of job {folder.name} outlived the test"


def until_gone(job_id, timeout=10.0):
    """Wait until no process of a job is left; return who is left after ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while (left := processes.find_job_pids({processes.MARK: job_id})) and time.monotonic() < until:
        time.sleep(0.05)
    return sorted(left)


def wait_for(condition, timeout=60.0, what="the condition"):
    """Poll until ``condition()`` is true and return its value."""
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, f"{what} did not come true in {timeout:g} s"
        time.sleep(0.05)
    return value


def crowded():
    """Return how many processes want each core lately, at least 1: what takes a second alone takes so many here."""
    return max(1.0, os.getloadavg()[0] / cores())

"""Which processes belong to a job."""

import os
import subprocess
import sys

import pytest

from distdl_jupyter.clusters import processes


@pytest.fixture
def child():
    """A child of this process that bears no mark of a job."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield started
    started.kill()
    started.wait()


@pytest.mark.parametrize("adopts", [True, False])
def test_who_adopts_orphans_counts_its_children_as_the_job_s(monkeypatch, child, adopts):
    monkeypatch.setattr(processes, "_adopts", adopts)
    assert (child.pid in processes.tree("20261121-024912-k3f9x")) == adopts
    assert child.pid in processes.tree("20261121-024912-k3f9x", [child.pid])
    monkeypatch.setattr(processes, "spared", {child.pid})
    assert child.pid not in processes.tree("20261121-024912-k3f9x", [child.pid])


def test_signals_have_their_names():
    assert (processes.signal_name(9), processes.signal_name(250)) == ("KILL", "250")
    assert [processes.signal_number(name) for name in ("KILL", "34", "odd")] == [9, 34, 0]
    assert os.getpid() not in processes.tree("20261121-024912-k3f9x")

"""Failures with several hosts: a link that is cut, versions that differ."""

import os
import time

import pytest
import torch

from distdl_jupyter import JobFailed
from distdl_jupyter.core.events import State
from tests.conftest import wait_for
from tests.faults.jobs import numbers, train
from tests.multihost.launching import BACKENDS, launch
from tests.multihost.training import machine

pytestmark = pytest.mark.timeout(300)


def nothing_left(hosts, timeout=60):
    """Wait until no process of ours is on any host; a cut host's agent ends itself after its timeout."""
    wait_for(
        lambda: not [name for name in hosts.names if hosts.running(name, "distdl_jupyter")],
        timeout=timeout,
        what="the end of every process on every host",
    )


@pytest.mark.full
@pytest.mark.parametrize("cut", ["node-a", "node-b"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_is_cut_off_is_named_within_30_seconds_and_the_job_ends(lab_of, backend, cut):
    hosts = lab_of(2, options={"patience_seconds": 8})
    job = launch(train, backend, 100_000, 0.01, backend=backend)
    wait_for(lambda: len(numbers(job, 0)) > 20, timeout=120, what="the first steps")
    began = time.time()
    hosts.cut(cut)
    job.wait(120)
    view = job.view()
    assert view.state is State.FAILED
    assert cut in view.reason, view.reason
    assert view.failure.code == "rank-lost", view.reason
    assert view.ended - began < 30 + 5, "named within 30 s, and 5 s to end the others"
    with pytest.raises(JobFailed, match=cut):
        job.result()
    nothing_left(hosts)


# before a job begins --------------------------------------------------------------------------


def test_a_host_with_another_torch_is_refused_with_the_command_that_sets_it_right(lab_of, tmp_path):
    metadata = next(
        path for path in (os.path.join(os.path.dirname(torch.__path__[0]), name, "METADATA")
                          for name in os.listdir(os.path.dirname(torch.__path__[0])) if name.startswith("torch-"))
        if os.path.exists(path)
    )  # fmt: skip
    other = tmp_path / "METADATA"
    with open(metadata, encoding="utf-8") as file:
        lines = file.read().splitlines()
    other.write_text("\n".join("Version: 2.5.1" if line.startswith("Version:") else line for line in lines))
    hosts = lab_of(3, instead={"node-c": {metadata: other}})
    version = torch.__version__.partition("+")[0]
    view = launch(machine, backend="torch", nodes=3).wait(120).view()
    assert view.state is State.FAILED
    for word in ("node-c", "torch 2.5.1", version, "pip install torch=="):
        assert word in view.reason, view.reason
    nothing_left(hosts)

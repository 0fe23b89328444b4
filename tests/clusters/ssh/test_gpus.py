"""What a job asks of hosts must be on each of them, and is its own while it runs."""

import pytest

from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.node.devices import cores
from tests.conftest import wait_for
from tests.hosts import needs_hosts


@needs_hosts
def test_a_job_that_demands_gpus_does_not_start_on_hosts_without_them(lab_of):
    lab = lab_of(2)
    job = lab.submit(int, distributed_backend="torch", use_gpu=True)
    with pytest.raises(JobFailed, match="The job needs 1 GPU, but node-a has none"):
        job.result(120)


def wait_for_file(path):
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.05)
    return os.environ["OMP_NUM_THREADS"]


ONE = {"node_count": 1, "distributed_backend": "plain"}


@needs_hosts
def test_jobs_of_two_submitters_wait_for_each_other_on_a_host(lab_of, tmp_path):
    """The queue is the host's: who submits from another data directory sees it too."""
    lab, count = lab_of(1), cores()
    first = lab.submit(wait_for_file, (str(tmp_path / "first"),), name="first", cores=count,
                       max_run_duration_seconds=600, **ONE)  # fmt: skip
    wait_for(lambda: first.state is State.RUNNING, 90, "the first job")
    second = lab.submit(wait_for_file, (str(tmp_path / "second"),), name="second", cores=1, **ONE)
    view = wait_for(lambda: second.view().queue, 90, "the second job's place")
    assert second.state is State.QUEUED
    assert (view.position, view.host, view.lacks) == (1, "node-a", ("cores",))
    assert view.names == (f"first ({first.id[-5:]})",)
    (tmp_path / "second").touch()
    (tmp_path / "first").touch()
    assert (first.result(90), second.result(90)) == (str(count), "1")
    lab.until_nothing_is_left()

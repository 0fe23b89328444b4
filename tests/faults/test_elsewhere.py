"""A data directory that two hosts share, on a file system that keeps locks to one host."""

import os
import time

import pytest

from distdl_jupyter import attach
from distdl_jupyter.core.events import State
from distdl_jupyter.node import processes
from tests.conftest import wait_for
from tests.elsewhere import other_host  # noqa: F401 - a fixture
from tests.faults import jobs

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(os.name != "posix", reason="Linux")]


#: This host, as another one calls it.
HERE = processes.identify_boot().partition("/")[0]


def wait_quietly():
    """Print one line, then nothing."""
    import time

    print("line 0", flush=True)
    time.sleep(600)


def started():
    job = jobs.start("plain", wait_quietly, args=())
    wait_for(lambda: jobs.numbers(job, 0) and job.state is not State.STARTING, what="the training")
    return job


def be_silent(seconds, *files):
    for path in files:
        os.utime(path, (time.time() - seconds, time.time() - seconds))


@pytest.mark.fault(
    "supervisor", "another host that cannot see its lock says where the job runs, and writes and ends nothing"
)
def test_a_healthy_job_seen_from_another_host(other_host):  # noqa: F811 - the fixture
    job = started()
    be_silent(2.0, job.folder.events, job.folder.log)
    written = job.folder.events.read_bytes()

    shown, listed, *refused = other_host.distdl(
        ["show", job.id], ["ls"], ["resume", job.id], ["rm", job.id], ["lost", job.id]
    )
    assert f"{job.id}: Running, " in shown
    assert f"Its supervisor runs on {HERE}. Last heartbeat: just now." in shown
    assert "Running" in listed
    for said in refused:
        assert said.startswith(f"2 distdl: Job {job.id}")
        assert f"Its supervisor runs on {HERE}. Last heartbeat: just now." in said
    assert f"Check it on {HERE}." in refused[0]
    assert job.folder.events.read_bytes() == written
    assert jobs.found_supervisor_of(job).is_running()

    # A request is a line in a file, so it comes through.
    (stopped,) = other_host.distdl(["stop", job.id])
    assert f"Its supervisor runs on {HERE}. Last heartbeat: just now.\n" in stopped
    assert job.wait(60).state is State.CANCELED


@pytest.mark.fault(
    "supervisor", "a job whose host is gone is unchanged until a user declares it lost; then it is lost, once"
)
def test_a_job_of_a_host_that_is_gone(other_host):  # noqa: F811 - the fixture
    job = started()
    jobs.kill_supervisor(job)
    be_silent(3 * 3600, job.folder.lock, job.folder.events, job.folder.log)
    written = job.folder.events.read_bytes()
    remedy = f"Check it on {HERE}. If that host is gone for good, run: distdl lost {job.id.rsplit('-')[-1]}"
    shown, refused, lost = other_host.distdl(["show", job.id], ["stop", job.id], ["lost", job.id])
    assert f"{job.id}: Running, " in shown
    assert f"Its supervisor runs on {HERE}. Last heartbeat: 3 h ago. {remedy}" in shown
    assert f"was asked to stop. Its supervisor runs on {HERE}. Last heartbeat: 3 h ago. {remedy}" in refused
    assert lost.rstrip().endswith("lost")
    view = attach(job.id).view()
    assert view.state is State.LOST
    assert view.reason.startswith(
        f"The job was marked as lost because {HERE}, the host of its supervisor, is gone for good."
    )
    (end,) = job.folder.events.read_bytes().removeprefix(written).splitlines()
    assert b'"state":"lost"' in end

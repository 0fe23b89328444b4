"""Elastic Horovod jobs on SSH hosts: processes die, hosts are taken away, unplugged and plugged in again."""

import os
import re
import signal

import pytest

from distdl_jupyter import JobFailed
from distdl_jupyter.core.state import State
from tests.conftest import wait_for
from tests.faults import test_elastic as here
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(400)]


def start(lab, count, *args, **options):
    given = {"node_count": count, "elastic": True, "max_restarts": 3, "min_node_count": 1, **options}
    return lab.submit(here.train, args, **given)


def where(lab, rank):
    """Return the pid on this machine of a rank's process, which its own host numbers otherwise."""
    mark = f"\0DISTDL_RANK={rank}\0".encode()
    (found,) = [pid for name in lab.hosts.names for pid in lab.of_job(name) if mark in environment(pid)]
    return found


def environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return b"\0" + file.read() + b"\0"


@pytest.mark.fault("restarts", "on other hosts too the others keep process and state, and the dead one is replaced")
@pytest.mark.full
def test_a_rank_on_another_host_is_killed(lab_of):
    lab = lab_of(2)
    job = start(lab, 2, 60, 0.1)
    here.until_step(job, 12)
    os.kill(where(lab, 1), signal.SIGKILL)
    wait_for(lambda: job.view().restarts, what="the replacement")
    here.until_step(job, 20, size=2, rank=1)
    assert sorted(job.stacks(30).ranks) == [0, 1], "a replaced rank can be asked too"
    assert job.results(timeout=200) == [(60, 2)] * 2
    view = job.view()
    assert [(one.rank, one.reason) for one in view.restarts] == [(1, "Rank 1 failed: ended by SIGKILL.")]
    assert sorted(set(here.steps(job))) == list(range(1, 61))
    assert [rank.host for rank in view.ranks] == ["node-a", "node-b"]
    assert any(re.fullmatch("goes on from [1-9].*", line.text) for line in job.logs(1))
    lab.until_nothing_is_left()


@pytest.mark.fault("restarts", "hosts that the host file removes or adds leave or join at the next commit")
@pytest.mark.full
def test_hosts_that_come_and_go(lab_of, tmp_path):
    lab, hosts = lab_of(2), tmp_path / "hosts"
    hosts.write_text("node-a:1\n")
    job = start(lab, 2, 10_000, 0.1, host_discovery=str(hosts))
    here.until_step(job, 5, size=1)
    hosts.write_text("node-a\nnode-b\n")
    here.until_step(job, 10, size=2)
    hosts.write_text("node-b:1\n")  # the one that the training began on
    alone = max(here.steps(job, size=2))
    here.until_step(job, alone + 1, size=1, rank=1)
    wait_for(lambda: job.view().ranks[0].status == "waiting", what="the end of the process that had to go")
    assert not job.view().restarts, "nothing has failed"
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    lab.until_nothing_is_left()


@pytest.mark.fault("restarts", "an unplugged host is dropped, and rejoins when it is back")
@pytest.mark.full
@pytest.mark.parametrize("shared", [None, False])
def test_a_host_that_is_unplugged_and_plugged_in_again(lab_of, shared):
    lab = lab_of(2, shared=shared)
    job = start(lab, 2, 10_000, 0.1)
    here.until_step(job, 10, size=2)
    lab.hosts.cut("node-b")
    here.until_step(job, max(here.steps(job)) + 5, size=1, rank=0)
    wait_for(lambda: job.view().ranks[1].status == "waiting", what="the loss of rank 1")
    lab.hosts.join("node-b")
    both = max(here.steps(job))
    here.until_step(job, both + 10, size=2, rank=1)
    view = job.view()
    assert not view.restarts, "a host that goes is no failure"
    assert any("No response from node-b" in event["text"] for event in lab.events("note"))
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    lab.until_nothing_is_left()


@pytest.mark.fault("restarts", "without its leading host the job is restarted on the remaining hosts")
@pytest.mark.full
def test_the_host_that_leads_is_unplugged(lab_of):
    lab = lab_of(2)
    job = start(lab, 2, 60, 0.2, max_restarts=1)
    here.until_step(job, 10, size=2)
    lab.hosts.cut("node-a")
    try:
        assert job.result(timeout=200) == (60, 1)
    finally:
        lab.hosts.join("node-a")
    (restart,) = job.view().restarts
    assert re.search("lost with node-a. No response from node-a", restart.reason)
    assert [rank.host for rank in job.view().ranks] == ["node-b"]
    lab.until_nothing_is_left()


@pytest.mark.fault("restarts", "more failures than max_restarts on other hosts fail the job with their own cause")
@pytest.mark.full
def test_more_failures_than_are_made_good(lab_of):
    lab = lab_of(2)
    job = start(lab, 2, 10_000, 0.1, max_restarts=0)
    here.until_step(job, 10, size=2)
    os.kill(where(lab, 1), signal.SIGKILL)
    with pytest.raises(JobFailed, match=r"Rank 1 of 2 failed first: ended by SIGKILL"):
        job.result(timeout=60)
    lab.until_nothing_is_left()

"""Profile a running job whose slowest operator and slow rank are known."""

import os
import signal

import pytest

from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client
from tests.conftest import wait_for
from tests.profiled import begun, check, train

pytestmark = pytest.mark.timeout(300)


def idle(seconds):
    import time

    from distdl_jupyter import log

    log(step=1, loss=1.0)
    time.sleep(seconds)


@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.full) for name in ("horovod-gloo", "horovod-mpi"))]
)
def test_ranks_record_the_same_steps(tmp_path, backend):
    job = client.submit(train, (backend,), distributed_backend=backend, process_count_per_node=2)
    try:
        found = begun(job).profile(4, timeout=120)
        for wrong in ([7], 1, [], [True]):
            with pytest.raises(InvalidSpec, match=r"a list of ranks from 0 to 1, not .*Use ranks=.0., for example"):
                job.profile(ranks=wrong)
        with pytest.raises(InvalidSpec, match="steps must be an integer from 1 to 50"):
            job.profile(steps=0)
        step = job.view().ranks[0].last_step
        wait_for(lambda: job.view().ranks[0].last_step > step, 60, "the training goes on")
    finally:
        job.cancel(now=True)
        assert job.wait(60).state is State.CANCELED
    # Of an ended job the kept one is returned.
    assert job.profile().number == found.number == 1
    kept = found.traces[0].parent
    assert sorted(path.name for path in kept.iterdir()) == ["profile.json", "rank-0.json.gz", "rank-1.json.gz"]
    assert [path.name for path in found.save(tmp_path / "traces") if path.is_file()] == [
        "profile-1-rank-0.json.gz", "profile-1-rank-1.json.gz"]  # fmt: skip
    assert not [line.text for line in job.logs() if "USDT" in line.text]
    check(found, backend)


@pytest.mark.full
def test_a_job_without_steps_has_no_profile():
    job = client.submit(idle, (120,))
    try:
        wait_for(lambda: job.view().ranks[0].last_step == 1, 60, "a report")
        with pytest.raises(JobNotRunning, match="No step was made within 30 s"):
            job.profile()
    finally:
        job.cancel(now=True)
        job.wait(60)
    with pytest.raises(JobNotRunning, match=r"has ended \(canceled\)"):
        job.ask_profile()
    with pytest.raises(JobNotFound, match="has no profile"):
        job.profile(recorded=True)


@pytest.mark.full
@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_a_job_that_ends_while_recording_leaves_no_incomplete_profile(how):
    job = client.submit(train, ("torch", 1.0), distributed_backend="torch", process_count_per_node=2)
    begun(job).ask_profile(50)
    wait_for(lambda: [one for one in job.view().profiles if one.status == "recording"], 60, "recording")
    with pytest.raises(JobNotRunning, match="is already recording a profile"):
        job.ask_profile()
    if how == "cancel":
        job.cancel(now=True)
    else:
        os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    job.wait(90)
    taken = job.view().profiles[-1]
    assert (taken.status, bool(taken.why)) in (("failed", True), ("done", False))
    if taken.status == "done":  # rank 0 has saved what it had when its peer was gone
        assert profiles.read(job.folder).missing.keys() == {1}

"""Restarts under Slurm: a new Slurm job for each, also when the supervisor dies between or in attempts."""

import pytest

from distdl_jupyter.core.events import State
from tests.clusters.slurm.conftest import slurm_jobs
from tests.clusters.slurm.test_slurm import events, lines, submit
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_stays")]

TRAIN = """
    import os, time
    import distdl_jupyter
    path = distdl_jupyter.checkpoint_dir() / f"{{os.environ['RANK']}}.txt"
    restart = int(os.environ["DISTDL_RESTART_COUNT"])
    first = int(path.read_text()) if path.exists() else 0
    for step in range(first, 12):
        print("restart", restart, "step", step, flush=True)
        distdl_jupyter.log(step=step, loss=1.0)
        path.write_text(str(step + 1))
        if restart == 0 and step == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        time.sleep({pause})
    (restart, first > 0)
"""


def printed(restart, steps):
    return [f"restart {restart} step {step}" for step in steps]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.full
@pytest.mark.fault("restarts", "a killed rank under Slurm: a new Slurm job continues from the checkpoint")
def test_a_killed_rank(slurm, distdl_home, copied, tmp_path_factory):
    more = {"directory": str(tmp_path_factory.mktemp("shared"))} if copied else {}
    job = submit(TRAIN.format(pause=0.1), nodes=2, max_restarts=1, **more).wait(240)
    assert job.state is State.COMPLETED, job.view().reason
    assert job.results() == [(1, True), (1, True)]
    assert lines(job, 1) == printed(0, range(5)) + printed(1, range(5, 12))
    numbers = {event["data"]["slurm_job"] for event in events(job) if event["type"] == "handle"}
    assert len(numbers) == 2
    assert sorted(path.name for path in job.folder.checkpoints.iterdir()) == ["0.txt", "1.txt"]
    assert slurm_jobs(slurm) == {}


@pytest.mark.parametrize("when", ["between", "after"])
@pytest.mark.full
@pytest.mark.fault(
    "restarts", "a supervisor killed while waiting for a restart, or after it: found again, nothing lost or duplicated"
)
def test_a_supervisor_that_dies(slurm, when):
    job = submit(TRAIN.format(pause=1.0), nodes=2, max_restarts=1)
    wait_for(lambda: len(job.view().restarts) == 1, 120.0)
    if when == "after":
        wait_for(lambda: printed(1, [5])[0] in lines(job, 1), 120.0)
    found_supervisor_of(job).kill()
    assert job.wait(240).state is State.COMPLETED, job.view().reason
    assert lines(job, 1) == printed(0, range(5)) + printed(1, range(5, 12))
    assert slurm_jobs(slurm) == {}

"""Jobs that Slurm interrupts: they are warned, save, and go into its queue again; with slurmdbd over a real MariaDB."""

import pytest

from distdl_jupyter.core.events import State
from tests.clusters.slurm.conftest import slurm_jobs
from tests.clusters.slurm.test_slurm import lines, notes, submit
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(600), pytest.mark.full, pytest.mark.usefixtures("nothing_stays")]


@pytest.fixture
def slurm(site):
    return site


#: Saves only when it is asked to, and continues from there until ``go`` exists.
TRAIN = """
    import os, time
    import distdl_jupyter
    path = distdl_jupyter.checkpoint_dir() / f"{{os.environ['RANK']}}.txt"
    step = int(path.read_text()) if path.exists() else 0
    print("begins at", step, flush=True)
    while not (os.path.exists("{go}") and step > 20):
        step += 1
        distdl_jupyter.log(step=step, loss=1.0)
        if distdl_jupyter.should_checkpoint():
            path.write_text(str(step))
            print("saved", step, flush=True)
        time.sleep(0.1)
    int(os.environ["DISTDL_RESTART_COUNT"])
"""


def saved(job, rank):
    return [int(line.split()[1]) for line in lines(job, rank) if line.startswith("saved")]


def begun(job, rank):
    return [int(line.split()[2]) for line in lines(job, rank) if line.startswith("begins")]


def restarts(job):
    return [(one.requeued, one.reason) for one in job.view().restarts]


def state_of(slurm, number):
    """Return a job's state as sacct tells it."""
    return slurm.run(
        "sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "-j", number
    ).stdout.strip()


def preempt(slurm, seconds=3):
    slurm.run(
        "sbatch", "--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null", f"--wrap=sleep {seconds}"
    )


@pytest.mark.fault("restarts", "preempted while running: warned, saved, queued again, continued; no failure is counted")
@pytest.mark.readme("preemption")
def test_preempted_job_saves_and_goes_on(slurm, tmp_path):
    go = tmp_path / "go"
    job = submit(TRAIN.format(go=go), nodes=2, partition="low", requeue=1)
    wait_for(lambda: job.view().state is State.RUNNING and begun(job, 0) and begun(job, 1))
    preempt(slurm)
    wait_for(lambda: len(begun(job, 0)) == 2 and len(begun(job, 1)) == 2, 120.0)
    go.touch()
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    assert job.results() == [1, 1]
    for rank in (0, 1):
        assert begun(job, rank) == [0, saved(job, rank)[-1]]
    assert notes(job, "ends-soon")
    ((requeued, why),) = restarts(job)
    assert requeued
    assert "higher priority (PREEMPTED)" in why


@pytest.mark.fault("restarts", "preempted without requeue: failed, with the reason and a fix")
def test_preempted_job_without_requeue_fails(slurm, tmp_path):
    job = submit(TRAIN.format(go=tmp_path / "go"), partition="low")
    wait_for(lambda: begun(job, 0))
    preempt(slurm)
    assert job.wait(120).state is State.FAILED
    assert "PREEMPTED" in job.view().failure.evidence
    assert "set the option 'requeue'" in job.view().failure.evidence


@pytest.mark.fault("restarts", "a time limit: warned before, saved, queued again, continued")
def test_job_at_its_time_limit_saves_and_goes_on(slurm, tmp_path):
    go = tmp_path / "go"
    job = submit(TRAIN.format(go=go), time_limit="1", requeue=2, checkpoint_seconds=20)
    wait_for(lambda: len(begun(job, 0)) == 2, 240.0)
    go.touch()
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    assert begun(job, 0) == [0, saved(job, 0)[-1]]
    assert "time limit (TIMEOUT)" in restarts(job)[0][1]
    assert notes(job, "ends-soon")
    # SIGUSR1 came first, SIGTERM with the end itself.
    first, last = saved(job, 0)
    assert last - first > 50


@pytest.mark.fault("supervisor", "killed, then the job is preempted: the next one queues it again")
def test_preempted_job_without_supervisor_goes_on(slurm, tmp_path):
    go = tmp_path / "go"
    job = submit(TRAIN.format(go=go), partition="low", requeue=1)
    wait_for(lambda: job.view().state is State.RUNNING and begun(job, 0))
    number = next(iter(slurm_jobs(slurm)))
    found_supervisor_of(job).kill()
    preempt(slurm)
    wait_for(lambda: number not in slurm_jobs(slurm), 60.0)
    assert state_of(slurm, number) == "PREEMPTED"
    go.touch()
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    assert begun(job, 0) == [0, saved(job, 0)[-1]]


@pytest.mark.fault("restarts", "scontrol requeue from outside: nothing starts twice, another Slurm job continues")
def test_job_that_slurm_itself_requeues(slurm, tmp_path):
    go = tmp_path / "go"
    job = submit(TRAIN.format(go=go), requeue=1)
    wait_for(lambda: job.view().state is State.RUNNING and begun(job, 0))
    number = next(iter(slurm_jobs(slurm)))
    slurm.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    slurm.run("scontrol", "requeue", number)
    wait_for(lambda: len(begun(job, 0)) == 2, 120.0)
    go.touch()
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    assert "Slurm requeued job" in restarts(job)[0][1]
    assert slurm_jobs(slurm) == {}


@pytest.mark.fault("restarts", "a failure and a preemption are counted separately")
def test_failures_and_interruptions_are_counted_apart(slurm, tmp_path):
    go = tmp_path / "go"
    code = TRAIN.format(go=go).replace(
        'print("begins', '(tmp := path.with_suffix(".bad")).exists() or [tmp.touch(), 1 / 0]\n    print("begins'
    )
    job = submit(code, partition="low", requeue=1, max_restarts=1)
    wait_for(lambda: job.view().state is State.RUNNING and begun(job, 0), 120.0)
    preempt(slurm)
    wait_for(lambda: len(begun(job, 0)) == 2, 120.0)
    go.touch()
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    assert [requeued for requeued, _ in restarts(job)] == [False, True]

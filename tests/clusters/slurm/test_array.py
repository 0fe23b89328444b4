"""A sweep on a real Slurm is a job array: its tasks are places in the queue, which trials take one after the other."""

import os
import subprocess
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from distdl_jupyter import jobs, loguniform, sweep
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import Group
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.studies.sweep_study import get_folder
from tests.client.test_sweep import _nothing_goes_on, driver, kill  # noqa: F401 - a fixture
from tests.clusters.slurm.conftest import slurm_jobs
from tests.clusters.slurm.test_slurm import events, notes
from tests.conftest import wait_for
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_stays")]


@pytest.fixture
def swept(tmp_path):
    """Start a sweep whose trials wait for ``go``, but for as many as there are tickets."""
    go, tickets = tmp_path / "go", tmp_path / "tickets"
    tickets.mkdir()

    def train(lr):
        import contextlib
        import time

        import distdl_jupyter

        while not go.exists():
            with contextlib.suppress(StopIteration, FileNotFoundError):
                next(tickets.iterdir()).unlink()
                break
            time.sleep(0.05)
        distdl_jupyter.log(step=0, loss=lr)

    def start(trials, **options):
        options = {"parallel": 2, "seed": 1, "compute_target": "slurm", "distributed_backend": "plain", **options}
        return sweep(train, {"lr": loguniform(1e-3, 1e-1)}, trials=trials, metric="loss", **options)

    return SimpleNamespace(start=start, go=go, ticket=lambda name: (tickets / name).touch())


def running(cluster):
    return {number for number, state in slurm_jobs(cluster).items() if state == "RUNNING"}


def tasks():
    """Return how many jobs have had each Slurm job."""
    of_jobs = [{one["data"]["slurm_job"] for one in events(job) if one["type"] == "handle"} for job in jobs()]
    return Counter(task for found in of_jobs for task in found)


def root_of(number):
    return number.partition("_")[0]


def states(found):
    return Counter(one.state for one in found.study.trials)


def test_a_sweep_is_one_array_whose_tasks_each_run_a_trial(slurm, swept):
    found = swept.start(4)
    wait_for(lambda: len(running(slurm)) == 2, what="two trials that run")
    number = root_of(next(iter(running(slurm))))
    assert {root_of(one) for one in slurm_jobs(slurm)} == {number}
    assert running(slurm) == {f"{number}_0", f"{number}_1"}
    (name,) = set(slurm.run("squeue", "--noheader", "--format=%j").stdout.split())
    assert name.endswith(found.id)
    swept.go.touch()
    assert found.wait(120).best.value == min(one.value for one in found.study.trials)
    assert states(found) == {"completed": 4}
    assert tasks() == {f"{number}_{task}": 1 for task in range(4)}
    assert slurm_jobs(slurm) == {}


@pytest.mark.full
def test_a_sweep_that_is_stopped_leaves_nothing_in_the_queue_and_goes_on_in_another_array(slurm, swept):
    found = swept.start(4)
    wait_for(lambda: len(running(slurm)) == 2, what="two trials that run")
    found.stop()
    wait_for(lambda: found.state is State.CANCELED, what="the end of the sweep")
    wait_for(lambda: slurm_jobs(slurm) == {}, what="the end of a task that has just started")
    first = {root_of(task) for task in tasks()}
    swept.go.touch()
    found.resume().wait(120)
    assert states(found) == {"completed": 4}
    assert set(tasks().values()) == {1}
    assert len({root_of(task) for task in tasks() if "_" in task} - first) == 1
    assert slurm_jobs(slurm) == {}


# faults ------------------------------------------------------------------------------------------


@pytest.mark.fault("sweep", "on Slurm tasks of its array wait for the next one; each runs one trial, none two")
def test_what_drives_a_sweep_is_killed_while_tasks_of_its_array_begin(slurm, swept):
    found = swept.start(4)
    wait_for(lambda: len(running(slurm)) == 2, what="two trials that run")
    number = root_of(next(iter(running(slurm))))
    kill(driver(found))
    swept.go.touch()
    wait_for(lambda: running(slurm) == {f"{number}_2", f"{number}_3"}, what="tasks that no trial has taken")
    found.wait(120)  # which looks
    assert states(found) == {"completed": 4}
    assert tasks() == {f"{number}_{task}": 1 for task in range(4)}


@pytest.mark.full
@pytest.mark.fault("sweep", "its array in Slurm is canceled from outside: it ends with a message, and can be resumed")
def test_an_array_that_is_canceled_from_outside(slurm, swept):
    found = swept.start(14)
    swept.ticket("one")
    wait_for(lambda: states(found)["completed"] == 1 and len(running(slurm)) == 2, what="a trial that has ended")
    slurm.run("scancel", root_of(next(iter(running(slurm)))))
    with pytest.raises(JobFailed, match=r"could not start: .*\(scancel\)"):
        found.wait(120)
    failed = states(found)["failed"]
    assert failed >= 3
    swept.go.touch()
    found.resume().wait(120)
    assert states(found) == {"completed": 14 - failed, "failed": failed}
    assert set(tasks().values()) == {1}
    assert slurm_jobs(slurm) == {}


@pytest.mark.full
@pytest.mark.fault("sweep", "Slurm does not accept an array: each trial is a separate job, with Slurm's reason")
def test_a_limit_on_submitted_jobs_makes_each_trial_a_job_by_itself(site, swept):
    def limited(number):
        site.run("sacctmgr", "--immediate", "modify", "user", "root", "set", f"maxsubmitjobs={number}")

    limited(1)
    try:
        swept.go.touch()
        found = swept.start(3, parallel=1).wait(120)
    finally:
        limited(-1)
    assert states(found) == {"completed": 3}
    assert not any("_" in task for task in tasks())
    assert any("Slurm rejected an array of 3 jobs" in one for job in jobs() for one in notes(job, "no-array"))


# a task by itself ----------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Start the script of a task, which waits a second for a trial."""
    monkeypatch.setattr(script, "TASK_WAIT_SECONDS", 1)
    (folder := tmp_path / "it's" / "1").mkdir(parents=True)
    (folder / "array.json").write_text('{"job": "7", "size": 2}')

    def start(number, **variables):
        (folder / "batch").write_text(script._build_task_script(folder))
        variables = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(number), **variables}
        return subprocess.Popen(["sh", str(folder / "batch")], env=variables, stdout=subprocess.PIPE, text=True)

    directory = script.JobDirectory(JobFolder(tmp_path / "20260101-000000-abcde"), "")
    directory.run.mkdir(parents=True)
    directory.batch.write_text("echo ran $SLURM_ARRAY_TASK_ID")
    return SimpleNamespace(start=start, folder=folder, directory=directory)


def test_a_task_waits_for_its_trial_and_runs_it(task):
    process = task.start(0)
    time.sleep(0.5)
    assert task.directory.claim_task(task.folder / "0")
    assert process.communicate(timeout=10)[0] == "ran 0\n"
    assert task.directory.claim_task(task.folder / "0"), "a supervisor that takes over has the place"
    other = script.JobDirectory(JobFolder(task.folder.parent / "20260101-000000-other"), "")
    assert not other.claim_task(task.folder / "0")
    assert other.link is None


def test_a_task_that_no_trial_takes_gives_up_and_cannot_be_taken_any_more(task):
    assert task.start(0).communicate(timeout=10)[0] == ""
    assert not task.directory.claim_task(task.folder / "0")
    assert [place.name for place in script._load_array(task.folder)[1]] == ["1"]


def test_a_task_whose_trial_is_gone_or_that_slurm_runs_again_does_nothing(task):
    assert task.directory.claim_task(task.folder / "1")
    task.directory.batch.unlink()
    assert task.start(1).communicate(timeout=10)[0] == ""
    again = task.start(0, SLURM_RESTART_COUNT="1")
    assert again.communicate(timeout=10)[0] == ""
    assert again.returncode == script.REQUEUED_EXIT_CODE
    assert [place.name for place in script._load_array(task.folder)[1]] == ["0"]


def test_a_group_that_is_no_sweep_or_has_no_array_is_closed_without_slurm(distdl_home, monkeypatch):
    monkeypatch.setattr(commands, "run", lambda *_, **_more: pytest.fail("nothing is to be asked"))
    script.close_array(Group(kind="scale", id="20260101-000000-abcde", name="n", size=2))
    assert not get_folder("20260101-000000-abcde").path.exists()

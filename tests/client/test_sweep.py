"""``sweep`` with real jobs on this machine: it finds the best trial, survives kills, and starts no trial twice."""

import contextlib
import json
import os
import resource
import shutil
import signal
from collections import Counter
from pathlib import Path

import optuna
import pytest

from distdl_jupyter import jobs, loguniform, sweep
from distdl_jupyter.cli import main
from distdl_jupyter.core.errors import (
    DiskRefused,
    DistDLError,
    InvalidSpec,
    JobFailed,
    JobNotFound,
    JobNotRunning,
    JobStillRunning,
    PluginUnavailable,
    ResultUnavailable,
)
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.studies import sweep_study, sweeps
from tests.client import swept
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of

pytestmark = pytest.mark.timeout(300)
LR = {"lr": loguniform(1e-4, 1e-1)}


@pytest.fixture(autouse=True)
def _nothing_goes_on():
    """End the sweeps of a test, whose drivers would start jobs after it."""
    yield
    for one in map(sweeps.Sweep, sweep_study.get_store().list_ids()):
        with contextlib.suppress(DistDLError):  # of a folder that cannot be read
            if one.state is State.RUNNING:
                one.stop()
                wait_for(lambda one=one: one.state is not State.RUNNING, 60, what="the end of a sweep")
    for job in jobs():
        if not job.state.ended:
            job.cancel(now=True)
            job.wait(60)


def driver(found):
    """Return the process that drives a sweep."""
    folder = str(sweep_study.get_folder(found.id).path)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode().split("\0")
            if "distdl_jupyter.studies.sweep_driver" in words and folder in words:
                return int(path.parent.name)
    return None


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/fd/0").exists(), what="the end of a process")


def trial_numbers():
    return Counter(job.spec.trial for job in jobs())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"parameters": {"lr": 0.1}}, "or a list of values, not 0.1"),
        ({"parameters": {"rate": [1, 2]}}, "cannot be called with these arguments"),
        ({"trials": 0}, "trials must be an integer of at least 1, not 0"),
        ({"parallel": -1}, "parallel must be an integer of at least 1, not -1"),
        ({"sampler": "x"}, "sampler must be one of .*, not 'x'"),
        ({"pruner": 3}, "pruner must be one of .*, not 3"), ({"metric": ""}, "metric must be the name of a metric that "
            "the"), ({"prune_after": -1}, "at least 0"),
        ({"sampler": "grid"}, "The sampler grid needs lists or integers"), ({"nodez": 2}, "nodez"),
    ],
)  # fmt: skip
def test_invalid_sweeps_are_refused_before_the_start(distdl_home, given, says):
    with pytest.raises(InvalidSpec, match=says):
        sweep(swept.trains, **{"parameters": LR, **given})
    assert not jobs()
    assert not (distdl_home / "sweeps").exists() or not list((distdl_home / "sweeps").iterdir())


def test_without_optuna_the_error_says_how_to_install_it(distdl_home, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginUnavailable, match=r"pip install 'distdl-jupyter\[sweep\]'"):
        sweeps._check_plan(sweeps.SweepPlan(parameters={}, trials=1, metric="loss"))
    with pytest.raises(JobNotFound, match="There are no sweeps yet"):
        sweep()


@pytest.mark.readme("sweeps")
def test_a_sweep_finds_the_best_and_is_kept(distdl_home):
    found = sweep(swept.trains, {**LR, "width": [1, 64]}, trials=4, parallel=2, seed=3, pruner="none",
                  kwargs={"epochs": 2}, name="digits")  # fmt: skip
    with pytest.raises(JobStillRunning):
        found.resume()
    found.wait(60)
    # Each trial ran once, with its own values.
    assert trial_numbers() == {0: 1, 1: 1, 2: 1, 3: 1}
    study = found.study
    for one in study.trials:
        assert one.value == pytest.approx(swept.after(2, **one.params))
        assert one.job.spec.parameters == one.params
        assert one.job.result() == one.id
    best = min(study.trials, key=lambda one: one.value)
    assert (found.best.params, found.best.value, found.best.job.id) == (best.params, best.value, best.id)
    assert next(one.number for one in found.trials) == best.number
    # Optuna's own tools open its storage.
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(sweep_study.get_folder(found.id).path / "journal.log"))
    )
    kept = optuna.load_study(study_name=None, storage=storage)
    assert kept.best_trial.number == best.number
    assert kept.best_params == best.params
    assert kept.trials[0].intermediate_values.keys() == {0, 1}
    # Any process reads it again; what has ended stays.
    again = sweep(found.id[-5:])
    assert str(again) == str(found)
    assert again.panel == found.panel
    assert (again.panel.done, again.panel.size, again.panel.best) == (4, 4, best.number)
    assert {row.group.id for row in client.list_rows()} == {found.id}
    assert {row.group.value for row in client.list_rows()} == {one.value for one in study.trials}
    with pytest.raises(JobNotRunning, match="so it cannot be stopped"):
        found.stop()
    with pytest.raises(JobNotRunning, match=r"resume\(trials=8\)"):
        found.resume()
    with pytest.raises(InvalidSpec, match="trials must be an integer of at least 1, not 0"):
        found.resume(trials=0)
    assert sorted(found.figure().data[0].y) == sorted(one.value for one in study.trials)
    drawn = found.figure("parameters").to_json()
    assert all(f'"{name}"' in drawn for name in ("loss", "lr", "width"))
    with pytest.raises(InvalidSpec, match="Unknown figure 'curves'"):
        found.figure("curves")
    assert found.trials.to_pandas().shape == (4, 6)


@pytest.mark.full
def test_a_metric_that_is_never_reported_ends_the_sweep_with_the_remedy(distdl_home):
    found = sweep(swept.trains, LR, trials=3, metric="acc", kwargs={"epochs": 1})
    reported = r"ended without reporting 'acc'. It reported 'loss'. .*log\(acc=...\), or use another"
    with pytest.raises(JobFailed, match=reported):
        found.wait(60)
    assert trial_numbers() == {0: 1}
    with pytest.raises(ResultUnavailable, match="without reporting 'acc'"):
        found.best  # noqa: B018


@pytest.mark.full
def test_trials_that_all_fail_end_the_sweep(distdl_home):
    with pytest.raises(JobFailed, match=r"The first 3 trials failed: ValueError: no data for .* distdl logs"):
        sweep(swept.fails, LR, trials=20).wait(60)
    assert len(jobs()) == 3


@pytest.mark.full
@pytest.mark.fault("sweep", "the next reader starts another one; each trial runs once, and none is lost")
def test_what_drives_a_sweep_is_killed_again_and_again(distdl_home, injected):
    found = sweep(swept.trains, LR, trials=5, parallel=2, pruner="none", kwargs={"epochs": 30, "seconds": 0.1})
    wait_for(lambda: len(jobs()) == 2 and all(job.view().metrics for job in jobs()), what="two trials at work")
    first = {job.id for job in jobs()}
    kill(driver(found))
    for job in client.jobs():
        job.wait(60)
    assert {job.state for job in jobs()} == {State.COMPLETED}
    # Killed again as soon as it has started the next ones.
    wait_for(lambda: found.state is State.RUNNING and len(jobs()) == 4, what="the next trials")
    kill(driver(found))
    kill(wait_for(lambda: found.state is State.RUNNING and driver(found), what="the third driver"))
    assert found.wait(120).state is State.COMPLETED
    assert set(trial_numbers().values()) == {1}
    assert first < {job.id for job in jobs()}
    assert [one.state for one in found.study.trials] == ["completed"] * 5
    # A job that had no supervisor yet when its driver was killed is lost, and another trial has its values.
    lost = [job for job in jobs() if job.state is State.LOST]
    assert len(jobs()) == 5 + len(lost) <= 6
    assert all(job.spec.parameters in [one.params for one in found.study.trials] for job in lost)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(sweep_study.get_folder(found.id).path / "journal.log"))
    )
    kept = optuna.load_study(study_name=None, storage=storage)
    assert Counter(one.state.name for one in kept.trials)["COMPLETE"] == 5
    injected(3)


@pytest.mark.full
@pytest.mark.fault("sweep", "after four in a row it is reported as lost; its trials continue, and it can be resumed")
def test_whatever_drives_a_sweep_is_killed_at_once(distdl_home):
    found = sweep(swept.trains, LR, trials=2, pruner="none", kwargs={"epochs": 80, "seconds": 0.1}, name="digits")
    wait_for(lambda: jobs() and jobs()[0].view().metrics, what="a trial at work")
    while found.state is State.RUNNING:
        if pid := driver(found):
            kill(pid)
    assert found.state is State.LOST
    (row,) = study_rows.fold_rows(client.list_rows())
    assert (row.id, row.name, row.state, row.done, row.total) == (found.id, "Sweep of digits", "lost", 0, 2)
    assert row.message == f"{found.study.problem} {found.study.hint}"
    assert row.message.startswith("The process that controls the sweep died 4 times in a row.")
    with pytest.raises(
        JobFailed, match=f'See .*supervisor.log for the cause. Continue with sweep."{found.id[-5:]}".*resume'
    ):
        found.wait(5)
    assert not jobs()[0].state.ended
    assert found.resume().wait(120).state is State.COMPLETED
    assert trial_numbers() == {0: 1, 1: 1}


@pytest.mark.full
@pytest.mark.fault(
    "sweep", "without a secret variable it is lost and names it; a reader that has the variable continues it"
)
def test_what_drives_a_sweep_with_a_secret_is_killed(distdl_home, monkeypatch):
    found = sweep(swept.trains, LR, trials=2, pruner="none", kwargs={"epochs": 50, "seconds": 0.1},
                  environment_variables={"HUB_TOKEN": "abcdefgh123"})  # fmt: skip
    wait_for(lambda: jobs() and jobs()[0].view().metrics, what="a trial at work")
    kill(driver(found))
    wait_for(lambda: found.state is State.LOST, what="the loss of the driver")
    assert "HUB_TOKEN was set for job" in found.study.problem
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DiskRefused):
            found.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found.state is State.LOST, "who could not stop it does not hold its lock"
    monkeypatch.setenv("HUB_TOKEN", "abcdefgh123")
    assert found.wait(60).state is State.COMPLETED
    assert trial_numbers() == {0: 1, 1: 1}


@pytest.mark.full
@pytest.mark.fault("sweep", "the next read continues it; lost trials are rerun with their values")
def test_what_drives_a_sweep_is_killed_with_the_supervisors_of_its_trials(distdl_home):
    """All of them end at once, as with their machine: these are no losses in a row."""
    found = sweep(swept.trains, LR, trials=4, parallel=3, pruner="none", kwargs={"epochs": 40, "seconds": 0.1})
    wait_for(lambda: len(jobs()) == 3 and all(job.view().metrics for job in jobs()), what="three trials at work")
    lost = jobs()
    kill(driver(found))
    for job in lost:
        kill(found_supervisor_of(job).pid)
    for job in lost:
        wait_for(lambda job=job: job.state is State.LOST, what="the loss of the job")
    assert found.wait(120).state is State.COMPLETED
    assert len(jobs()) == 7
    study = found.study
    assert len(study.trials) == 4
    assert all(job.spec.parameters in [one.params for one in study.trials] for job in lost)
    assert {one.state for one in study.trials} == {"completed"}


@pytest.mark.full
def test_a_sweep_that_is_stopped_goes_on_later_and_with_more_trials(distdl_home):
    found = sweep(swept.trains, LR, trials=3, pruner="none", kwargs={"epochs": 20, "seconds": 0.1})
    wait_for(lambda: jobs() and jobs()[0].view().metrics, what="a trial at work")
    found.stop()
    wait_for(lambda: found.state is State.CANCELED, what="the end of the sweep")
    assert [(job.state, job.view().reason) for job in jobs()] == [(State.CANCELED, "The sweep was stopped.")]
    values = found.study.trials[0].params
    assert (found.study.done, found.panel.best) == (0, None)
    found.resume(trials=4).wait(120)
    # The one that was stopped is run again, with its values.
    assert trial_numbers() == dict.fromkeys(range(5), 1)
    assert [(one.number, one.state) for one in found.study.trials] == [(n, "completed") for n in range(1, 5)]
    assert values in [one.params for one in found.study.trials]
    assert (found.panel.size, found.panel.done) == (4, 4)
    found.resume(trials=5).wait(60)
    assert found.study.done == 5


@pytest.mark.full
@pytest.mark.fault("sweep", "no further trial starts; the running one continues, and all known results are shown")
def test_a_sweep_whose_folder_is_deleted_ends_and_its_trials_are_kept(distdl_home):
    found = sweep(swept.trains, LR, trials=4, pruner="none", kwargs={"epochs": 20, "seconds": 0.1})
    wait_for(lambda: jobs() and jobs()[0].view().metrics, what="a trial at work")
    pid = driver(found)
    shutil.rmtree(sweep_study.get_folder(found.id).path)
    wait_for(lambda: not Path(f"/proc/{pid}/fd/0").exists(), what="the end of the driver")
    assert found.state is State.RUNNING
    jobs()[0].wait(60)
    assert jobs()[0].state is State.COMPLETED
    assert found.state is State.LOST
    assert "its finished trials are kept" in found.study.problem.lower()
    assert found.best.value > 0
    with pytest.raises(JobNotFound):
        found.resume()
    assert len(jobs()) == 1


@pytest.mark.full
def test_trials_are_pruned_only_after_others_finished_and_a_tenth_of_their_steps(distdl_home):
    rates = [1e-2, 1.1e-2, 1.2e-2, 1.3e-2, 1.4e-2, 1e-5, 1.1e-5, 1.2e-5, 1.3e-5]
    found = sweep(swept.trains, {"lr": rates}, trials=9, sampler="grid", seed=0, name="digits",
                  kwargs={"epochs": 60, "seconds": 0.05}).wait(200)  # fmt: skip
    first, rest = found.study.trials[:5], found.study.trials[5:]
    assert {one.state for one in first} == {"completed"}
    pruned = [one for one in rest if one.state == "pruned"]
    assert pruned
    assert all(one.done >= 6 and one.message.startswith("higher than the median at step ") for one in pruned)


SCRIPT = """
import argparse
from distdl_jupyter import log
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--epochs", type=int)
given = parser.parse_args()
for epoch in range(given.epochs):
    log(step=epoch, loss=given.lr / given.batch_size)
"""


@pytest.mark.full
def test_a_script_is_swept_from_a_terminal(distdl_home, tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    script = str(tmp_path / "train.py")
    words = ["sweep", "-f", "--param", "lr=uniform(0.1,0.2)", "--param", "batch_size=16,32", "--trials", "3", script,
             "--epochs", "2"]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr()
    assert "trial 2 completed: loss " in said.err
    found = sweep()
    assert said.out.splitlines()[0] == found.id
    best = found.best
    assert best.value == pytest.approx(best.params["lr"] / best.params["batch_size"])
    words = best.job.spec.script_arguments
    assert words == ("--epochs", "2", "--lr", str(best.params["lr"]), "--batch-size", str(best.params["batch_size"]))
    assert main(["sweep", "--show", found.id]) == 0
    assert capsys.readouterr().out.startswith(f"Sweep of train ({found.id}): completed")
    assert main(["sweep", "--json", "--show", "newest"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == best.number
    assert main(["sweep", "--best", found.id, "--name", "final"]) == 0
    job = client.attach(capsys.readouterr().out.strip()).wait(60)
    assert (job.name, job.state, job.spec.script_arguments) == ("final", State.COMPLETED, words)
    for wrong, says in [
        (["--param", "lr", script], "has no values"),
        (["--param", "depth=1,2", script], "Option --depth was not found in train.py"),
        ([script], "distdl sweep needs a script and the values"), (["--stop", found.id], "so it cannot be stopped"),
    ]:  # fmt: skip
        assert main(["sweep", *wrong]) == 2
        assert says in capsys.readouterr().err

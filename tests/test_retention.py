"""Which jobs ``prune`` deletes, and which it keeps."""

import json
import os
import re
import subprocess
import time
from datetime import timedelta

import pytest

from distdl_jupyter import cli, jobs, prune
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.spec import Group
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import retention
from tests import finished

DAY = 86400


def aged(days, number=0, state=State.COMPLETED, **more):
    """A job whose last event was written so many days ago."""
    folder = finished.job(number, state, **more)
    lines = [json.loads(line) for line in folder.events.read_text().splitlines()]
    folder.events.write_text("".join(json.dumps({**one, "t": one["t"] - days * DAY}) + "\n" for one in lines))
    folder.summary.unlink(missing_ok=True)
    return folder


def left():
    return {job.id for job in jobs()}


def kept(done):
    return {one.reason: one.count for one in done.retained}


def test_prune_deletes_a_job_that_is_old_and_not_among_the_newest():
    folders = [aged(40, 0), aged(40, 1), aged(10, 2), aged(40, 3), aged(1, 4)]
    done = prune(older="30d", keep=2)
    assert [job.id for job in done.jobs] == [folders[1].id, folders[0].id]
    assert kept(done) == {"newest": 2, "younger": 1}
    assert left() == {folder.id for folder in folders[2:]}
    assert not done.failed
    assert not any(JobStore().jobs.glob(".old-*"))


def test_trials_of_a_sweep_that_runs_stay():
    sweep = JobStore(kind="sweeps").publish(JobStore(kind="sweeps").prepare("20261125-010203-abcde"))
    trial = aged(40, 0, group=Group(kind="sweep", id=sweep.id, name="n", size=9))
    assert (prune(older="30d").jobs, kept(prune(older="30d"))) == ((), {"busy": 1})
    (sweep.path / "end.json").write_text("{}")
    lock = JobLock.acquire(sweep.lock)  # it goes on
    assert prune(older="30d").jobs == ()
    lock.release()
    assert [job.id for job in prune(older="30d").jobs] == [trial.id]


@pytest.mark.parametrize(
    ("options", "stay"),
    [
        ({"older": "30d"}, {1}),
        ({"older": "0s"}, set()),
        ({"older": "960h"}, {0, 1}),
        ({"older": timedelta(days=30)}, {1}),
        ({"keep": 1}, {1}),
        ({"keep": 0}, set()),
        ({"keep": 5}, {0, 1}),
    ],
)
def test_age_or_number_alone_is_enough(options, stay):
    folders = [aged(35, 0), aged(10, 1)]
    prune(**options)
    assert left() == {folders[number].id for number in stay}


def test_a_dry_run_says_what_would_go_and_deletes_nothing():
    old = aged(40, 0, State.FAILED)
    (old.outputs / "model.pt").write_bytes(b"x" * 3_000_000)
    aged(1, 1)
    done = prune(older="30d", dry_run=True)
    (job,) = done.jobs
    assert (job.id, job.state, job.name) == (old.id, "failed", "digits 0")
    assert job.size >= 3_000_000
    assert "40 d ago" in repr(done)
    assert repr(done).endswith("Would delete 1 job, 3.0 MB (dry run, nothing was deleted). Kept: 1 newer.")
    assert "<td" in done._repr_html_()
    assert len(left()) == 2


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.CANCELING])
def test_a_job_that_has_not_ended_stays_whatever_its_age(state):
    folder = aged(400, 0, State.RUNNING)
    with folder.events.open("a") as log:
        log.write(json.dumps({"v": 1, "t": time.time() - 399 * DAY, "type": "state", "state": state.value}) + "\n")
    lock = JobLock.acquire(folder.lock)
    try:
        done = prune(older="1d", keep=0)
    finally:
        lock.release()
    assert (done.jobs, kept(done)) == ((), {"active": 1})
    assert left() == {folder.id}


def test_an_ended_job_whose_supervisor_is_still_at_work_stays():
    folder = aged(400)
    lock = JobLock.acquire(folder.lock)
    try:
        done = prune(keep=0)
    finally:
        lock.release()
    assert (done.jobs, kept(done)) == ((), {"busy": 1})
    assert "Kept: 1 in use." in repr(done)


def test_a_job_at_work_on_another_host_stays():
    """Its lock seems to be free here; one that has ended there, and was not heard of since, is as any other."""
    running, ending, ended = aged(400, 0, State.RUNNING), aged(400, 1), aged(400, 2)
    for folder in (running, ending, ended):
        folder.lock.write_text('{"host": "login-2", "boot": "b", "pid": 7, "started": 9}')
    for path in (ended.lock, ended.events, ended.log):
        os.utime(path, (time.time() - 300,) * 2)
    done = prune(keep=0)
    assert [job.id for job in done.jobs] == [ended.id]
    assert kept(done) == {"other-host": 2}
    assert left() == {running.id, ending.id}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_job_of_another_user_stays():
    folder = aged(400)
    os.chown(folder.path, 12345, 12345)
    done = prune(keep=0)
    assert (done.jobs, kept(done)) == ((), {"other-user": 1})
    assert left() == {folder.id}


@pytest.fixture
def stuck():
    """A job of which a part cannot be deleted."""
    folder = aged(400)
    if os.geteuid():
        (folder.outputs / "kept").mkdir()
        (folder.outputs / "kept" / "file").write_text("")
        (folder.outputs / "kept").chmod(0o500)
    elif subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder.outputs], check=False, capture_output=True).returncode:
        pytest.skip("root may delete everything, and may not mount here")
    yield folder
    place = JobStore().jobs / f".old-{folder.id}" / "outputs"
    if os.geteuid():
        (place / "kept").chmod(0o700)
    else:
        subprocess.run(["umount", "-l", place], check=True)


def test_files_that_could_not_be_deleted_are_an_error(stuck, capsys):
    aged(400, 1)
    assert cli.main(["prune", "--older", "30d"]) == 1
    out = capsys.readouterr().out
    assert f"{stuck.id} could not be deleted: Job {stuck.id} was deleted, but some of its files remain in " in out
    assert f" in {JobStore().jobs / f'.old-{stuck.id}'}. " in out
    assert "Deleted 1 job, " in out
    assert left() == set()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "prune needs a rule for which jobs to delete"),
        ({"older": "30"}, "older must be an age with its unit, such as 30d, 12h, 4w or 90min, not '30'."),
        ({"older": "1m"}, "with its unit"),
        ({"older": 30}, "with its unit"),
        ({"older": timedelta(days=-1)}, "with its unit"),
        ({"keep": -1}, "keep must be an integer of at least 0, not -1."),
        ({"keep": True}, "keep must be an integer of at least 0, not True"),
    ],
)
def test_an_unclear_rule_deletes_nothing(options, says):
    folder = aged(400)
    with pytest.raises(InvalidSpec, match=re.escape(says)):
        prune(**options)
    assert left() == {folder.id}


def test_the_setting_prunes_once_a_day():
    first = aged(40)
    assert [job.id for job in retention.prune_daily("30d", None).jobs] == [first.id]
    second = aged(40, 1)
    assert retention.prune_daily("30d", None) is None
    assert left() == {second.id}
    mark = JobStore().jobs.with_name("pruned")
    os.utime(mark, (time.time() - 1.1 * DAY,) * 2)
    assert retention.prune_daily("30d", None).jobs
    assert left() == set()


def test_without_any_job_the_setting_makes_nothing(distdl_home):
    assert retention.prune_daily("30d", None) is None
    assert not JobStore().jobs.parent.exists()

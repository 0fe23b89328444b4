"""Jobs whose supervisor has another host: their locks seem to be free, and nothing is concluded from that."""

import json
import os
import time

import pytest

from distdl_jupyter import ranks
from distdl_jupyter.core import locks
from distdl_jupyter.core.errors import JobNotRunning, JobStillRunning
from distdl_jupyter.core.events import EventWriter, JobLock
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.job_list import Listing
from distdl_jupyter.ranks.connection import running as running_sessions
from distdl_jupyter.views.card import card
from tests import finished
from tests.elsewhere import sign_elsewhere


@pytest.fixture
def folder():
    return running()


def running(silence=200.0, **more):
    """Return the folder of a job that runs on login1, heard so many seconds ago."""
    folder = finished.job(state=State.RUNNING, **more)
    sign_elsewhere(folder.lock, "login1", silence)
    for file in (folder.events, folder.log):
        os.utime(file, (time.time() - silence, time.time() - silence))
    return folder


def test_it_runs_as_far_as_anybody_here_knows(folder):
    written = folder.events.read_bytes()
    view = client.attach(folder.id).view()
    assert (view.state, view.elsewhere.host) == (State.RUNNING, "login1")
    remedy = f"Check it on login1. If that host is gone for good, run: distdl lost {folder.id[-5:]}"
    assert card(view, time.time()).notice.text == f"Its supervisor runs on login1, last heard 3 min ago. {remedy}"
    assert view.to_json()["elsewhere"]["host"] == "login1"
    (row,) = [one.row for one in Listing().all()]
    assert (row.state, row.says) == ("running", "Its supervisor runs on login1, last heard 3 min ago.")
    assert folder.events.read_bytes() == written
    assert json.loads(folder.lock.read_text())["host"] == "login1"


def test_what_it_writes_is_a_sign_of_it(folder):
    job = client.attach(folder.id)
    assert job.view().elsewhere.is_silent
    writer = EventWriter(folder.events)
    writer.write("metric", rank=0, step=9, values={"loss": 0.5})
    writer.close()
    assert not job.view().elsewhere.is_silent
    assert card(job.view(), time.time()).notice.text == "Its supervisor runs on login1, last heard just now."


def test_a_grave_note_is_shown_rather_than_a_healthy_supervisor_elsewhere():
    folder = running(silence=5.0)
    writer = EventWriter(folder.events)
    writer.write("note", level="error", text="The disk is full.", code="")
    writer.close()
    os.utime(folder.events, (time.time() - 5, time.time() - 5))
    view = client.attach(folder.id).view()
    assert view.elsewhere is not None
    assert card(view, time.time()).notice.text == "The disk is full."


def test_its_end_is_read_as_ever(folder):
    job = client.attach(folder.id)
    assert job.view().elsewhere is not None
    writer = EventWriter(folder.events)
    writer.write("state", state="completed", reason="")
    writer.close()
    assert job.state is State.COMPLETED
    assert job.view().elsewhere is None


def test_requests_are_placed_and_answered_with_its_host(folder):
    job = client.attach(folder.id)
    said = r"Its supervisor runs on login1, last heard 3 min ago\. Check it on login1\. "
    with pytest.raises(JobStillRunning, match=r"was asked to stop\. " + said):
        job.cancel()
    assert "cancel" in folder.control.read_text()
    for refused in (job.resume, job.remove):
        with pytest.raises(JobStillRunning, match=r"is still running\. " + said):
            refused()


def test_a_request_to_one_that_was_heard_lately_is_just_placed():
    job = client.attach(running(silence=5.0).id)
    job.cancel()
    assert "cancel" in job.folder.control.read_text()
    with pytest.raises(JobStillRunning, match=r"is not lost\. Its supervisor runs on login1, last heard just now"):
        job.declare_lost()


def test_a_job_of_this_host_cannot_be_declared_lost():
    folder = finished.job(state=State.RUNNING)
    lock = JobLock.acquire(folder.lock)
    with pytest.raises(JobStillRunning, match=r"Its supervisor is running"):
        client.attach(folder.id).declare_lost()
    lock.release()


def test_a_free_lock_of_another_run_of_this_host_is_a_lost_job(folder):
    said = json.loads(folder.lock.read_text())
    folder.lock.write_text(json.dumps({**said, "host": locks.processes.boot().partition("/")[0]}))
    assert client.attach(folder.id).state is State.LOST


@pytest.mark.parametrize(("name", "swept"), [(".new-20260101-000000-aaaa", False), (".old-20260101-000000-aaaa", True)])
def test_what_another_host_makes_is_not_swept(name, swept):
    store = JobStore()
    hidden = JobFolder(store.jobs / name)
    hidden.path.mkdir(parents=True)
    sign_elsewhere(hidden.lock, "login1")
    os.utime(hidden.path, (1.0, 1.0))
    store.sweep()
    assert hidden.path.exists() is not swept


def test_ranks_of_another_host_are_not_offered_here():
    folder = running(kind="ranks")
    with folder.lock.open() as file:
        locks.fcntl.flock(file, locks.fcntl.LOCK_EX)  # a file system whose locks all hosts see
        (folder.path / "serving").mkdir()
        (folder.path / "serving" / "rank-0.json").touch()
        assert list(running_sessions()) == []
    with pytest.raises(JobNotRunning, match=r"The ranks of job .* were started on login1\. Log in to login1"):
        ranks.current(only=folder.id)

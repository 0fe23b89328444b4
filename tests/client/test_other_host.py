"""Jobs whose supervisor runs on another host: their locks look free here, which proves nothing."""

import json
import os
import time

import pytest

from distdl_jupyter import ranks
from distdl_jupyter.core import files
from distdl_jupyter.core.errors import JobNotRunning, JobStillRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.job_list import JobIndex
from distdl_jupyter.views.card import make_card
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


def test_the_job_is_shown_as_running_there(folder):
    written = folder.events.read_bytes()
    view = client.attach(folder.id).view()
    assert (view.state, view.remote_writer.host) == (State.RUNNING, "login1")
    remedy = f"Check it on login1. If that host is gone for good, run: distdl lost {folder.id[-5:]}"
    assert (
        make_card(view, time.time()).notice.text
        == f"Its supervisor runs on login1. Last heartbeat: 3 min ago. {remedy}"
    )
    assert view.to_json()["elsewhere"]["host"] == "login1"
    (row,) = [one.row for one in JobIndex().read_all()]
    assert (row.state, row.message) == ("running", "Its supervisor runs on login1. Last heartbeat: 3 min ago.")
    assert folder.events.read_bytes() == written
    assert json.loads(folder.lock.read_text())["host"] == "login1"


def test_an_error_note_comes_before_a_healthy_supervisor_elsewhere():
    folder = running(silence=5.0)
    writer = EventWriter(folder.events)
    writer.write("note", level="error", text="The disk is full.", code="")
    writer.close()
    os.utime(folder.events, (time.time() - 5, time.time() - 5))
    view = client.attach(folder.id).view()
    assert view.remote_writer is not None
    assert make_card(view, time.time()).notice.text == "The disk is full."


def test_a_job_of_this_host_cannot_be_declared_lost():
    folder = finished.job(state=State.RUNNING)
    lock = JobLock.acquire(folder.lock)
    with pytest.raises(JobStillRunning, match=r"Its supervisor is running"):
        client.attach(folder.id).declare_lost()
    lock.release()


@pytest.mark.parametrize(("name", "swept"), [(".new-20260101-000000-aaaa", False), (".old-20260101-000000-aaaa", True)])
def test_folders_that_another_host_prepares_are_not_removed(name, swept):
    store = JobStore()
    hidden = JobFolder(store.jobs / name)
    hidden.path.mkdir(parents=True)
    sign_elsewhere(hidden.lock, "login1")
    os.utime(hidden.path, (1.0, 1.0))
    store.clean_up()
    assert hidden.path.exists() is not swept


def test_persistent_ranks_of_another_host_are_not_listed_here():
    folder = running(kind="ranks")
    with folder.lock.open() as file:
        files.fcntl.flock(file, files.fcntl.LOCK_EX)  # a file system whose locks all hosts see
        (folder.path / "serving").mkdir()
        (folder.path / "serving" / "rank-0.json").touch()
        assert ranks.find_session() is None
    with pytest.raises(JobNotRunning, match=r"The ranks of job .* were started on login1\. Log in to login1"):
        ranks.find_session(only=folder.id)

"""Lists of jobs are complete and correct, and read no job that has ended."""

import json
import shutil
import subprocess
import sys
import threading

import pytest

from distdl_jupyter import cli
from distdl_jupyter.core import events
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.jobs.job_list import JobIndex
from distdl_jupyter.jobs.reader import finalize_abandoned
from distdl_jupyter.views import job_table
from tests.finished import job


@pytest.fixture
def read(monkeypatch):
    """Return the list of jobs' events that are read."""
    opened = []
    of_events = events.read

    def reading(path, *more, **named):
        opened.append(path)
        return of_events(path, *more, **named)

    monkeypatch.setattr(events, "read", reading)
    return opened


def test_an_empty_directory_has_no_jobs():
    assert JobIndex().read_all() == []
    assert client.jobs() == []
    assert "No jobs yet" in repr(client.jobs())


def test_a_row_has_state_reason_metric_and_hosts():
    folder = job(state=State.FAILED)
    (one,) = JobIndex().read_all()
    assert (one.row.id, one.row.state, one.row.message, one.row.notebook) == (
        folder.id, "failed", "It was so.", "training.ipynb",
    )  # fmt: skip
    assert (one.row.metric, one.row.value, one.row.spark) == ("loss", 0, (4, 3, 2, 1, 0))
    assert (one.cluster, one.hosts, one.active) == ("local", ("node-a",), False)


def test_a_supervisor_leaves_the_row_so_that_no_ended_job_is_read(read):
    folders = [job(number) for number in range(3)]
    assert [one.row.id for one in JobIndex().read_all()] == [folder.id for folder in reversed(folders)]
    assert read == []


def test_the_summary_is_the_row_that_reading_the_job_gives():
    folder = job(state=State.CANCELED)
    from_summary = JobIndex().read_all()
    folder.summary.unlink()
    assert JobIndex().read_all() == from_summary


def test_a_job_without_a_summary_is_read_once_for_all_processes(read):
    job().summary.unlink()
    assert len(JobIndex().read_all()) == 1
    assert read
    read.clear()
    assert len(JobIndex().read_all()) == 1
    assert read == []


def test_a_living_job_is_followed():
    folder = job(state=State.RUNNING)
    listing = JobIndex()
    lock = JobLock.acquire(folder.lock)
    try:
        assert [one.row.state for one in listing.read_all()] == ["running"]
        assert not folder.summary.exists()
        writer = EventWriter(folder.events)
        writer.write("state", state="completed", reason="")
        writer.close()
        assert [one.row.state for one in listing.read_all()] == ["completed"]
        assert folder.summary.exists()
    finally:
        lock.release()


def test_a_job_whose_writer_died_is_lost():
    job(state=State.RUNNING)
    listing = JobIndex()
    assert [one.row.state for one in listing.read_all()] == ["lost"]
    assert [one.row.state for one in JobIndex().read_all()] == ["lost"]


def test_a_removed_job_is_not_listed():
    folder, other = job(0), job(1)
    listing = JobIndex()
    assert len(listing.read_all()) == 2
    client.attach(folder.id).remove()
    assert [one.row.id for one in listing.read_all()] == [other.id]
    assert [one.row.id for one in JobIndex().read_all()] == [other.id]


def test_another_data_directory_has_its_own_jobs(tmp_path, monkeypatch):
    job()
    listing = JobIndex()
    assert len(listing.read_all()) == 1
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "other"))
    assert listing.read_all() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: b"\xff\xfe" + data,
        lambda data: data.replace(b'"completed"', b'"running"'),
        lambda data: data.replace(b'"id":"2', b'"id":"1'),
        lambda data: b"[]",
        lambda data: json.dumps([job_table.VERSION, "local", [], [1, 2]]).encode(),
        lambda data: data.replace(job_table.VERSION.encode(), b"0-00000000"),
    ],
)
def test_a_damaged_summary_or_one_of_another_version_is_only_slower(damage):
    folder = job()
    data = folder.summary.read_bytes()
    assert damage(data) != data
    folder.summary.write_bytes(damage(data))
    for _ in range(2):
        assert [(one.row.id, one.row.state) for one in JobIndex().read_all()] == [(folder.id, "completed")]
    assert folder.summary.read_bytes() == data


def test_a_list_works_where_no_summary_can_be_written():
    folder = job()
    folder.summary.unlink()
    folder.summary.mkdir()
    assert [one.row.id for one in JobIndex().read_all()] == [folder.id]


def test_threads_that_list_at_once_agree():
    folders = [job(number) for number in range(30)]
    for folder in folders:
        folder.summary.unlink()
    listing, found = JobIndex(), []
    threads = [threading.Thread(target=lambda: found.append(listing.read_all())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [[one.row.id for one in each] for each in found] == [sorted((f.id for f in folders), reverse=True)] * 6


def test_processes_that_list_at_once_leave_whole_summaries():
    folders = [job(number) for number in range(30)]
    for folder in folders:
        folder.summary.unlink()
    code = "from distdl_jupyter.jobs import client; print(len(client.list_rows()))"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert [int(one.communicate(timeout=120)[0]) for one in running] == [30] * 4
    assert {job_table.read_summary(folder).row.id for folder in folders} == {folder.id for folder in folders}
    assert not [path for folder in folders for path in folder.path.glob(".summary*")]


# handles ---------------------------------------------------------------------------------------


def test_handles_of_a_list_answer_without_opening_the_jobs(read):
    folder = job(state=State.FAILED)
    (one,) = client.jobs()
    assert (one.name, one.state, repr(one)) == (
        "digits 0", State.FAILED, f"<Job {folder.id} 'digits 0' failed, 2 processes>",
    )  # fmt: skip
    assert read == []
    assert one.view().state is State.FAILED


def test_a_list_of_handles_shows_itself_as_a_table():
    folder = job()
    table = client.jobs()
    assert "Completed" in repr(table)
    assert f'<td style="text-align:left;vertical-align:top">{folder.id}</td>' in table._repr_html_()
    assert len(table) == 1


def test_a_list_shows_what_can_be_read_when_a_folder_is_no_job():
    broken, folder = job(0), job(1)
    broken.spec_file.write_text("{")
    broken.summary.unlink()
    assert [row.id for row in client.list_rows()] == [folder.id]
    assert len(client.jobs()) == 2
    shutil.rmtree(broken.path)


def of_another_version(folder, name, content):
    """Write a file of a job in another format, and remove its summary."""
    (folder.path / name).write_text(json.dumps(content) + "\n")
    folder.summary.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("spec.json", [1, 2], "job-spec-invalid"),
        ("spec.json", {"job": "digits", "nodes": 2}, "job-spec-invalid"),
        ("spec.json", {"id": "a", "name": "b", "node_count": "two"}, "job-spec-invalid"),
        ("spec.json", {"id": "a", "name": "b", "source": "train.py"}, "job-spec-invalid"),
        ("events.jsonl", {"type": "state", "t": 1.0, "status": "done"}, "job-events-invalid"),
        ("events.jsonl", {"type": "state", "t": "yesterday", "state": "completed"}, "job-events-invalid"),
        ("events.jsonl", {"type": "metric", "t": 1.0, "rank": 0, "step": 1, "values": [0.5]}, "job-events-invalid"),
        ("log.jsonl", {"type": "log", "t": 1.0, "rank": 0, "line": "Hello"}, "job-events-invalid"),
    ],
)
def test_a_folder_of_another_version_is_left_out_and_refused_with_what_to_do(name, content, code, capsys):
    foreign, folder = job(0), job(1)
    of_another_version(foreign, name, content)
    assert [row.id for row in client.list_rows()] == [folder.id]
    assert folder.id in repr(client.jobs())
    with pytest.raises(JobNotFound) as refused:
        client.attach(foreign.id).view()
    assert refused.value.code == code
    assert refused.value.hint.endswith(f"rm -r {foreign.path}")
    assert cli.main(["show", foreign.id]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert cli.main(["ls"]) == 0
    before = sorted(foreign.path.iterdir())
    with pytest.raises(JobNotFound):
        finalize_abandoned(foreign)
    assert sorted(foreign.path.iterdir()) == before
    shutil.rmtree(foreign.path)


def test_a_sweep_folder_without_a_study_does_not_stop_the_list():
    folder = job()
    sweeps = JobStore(kind="sweeps").jobs
    sweeps.mkdir()
    shutil.copytree(folder.path, sweeps / folder.id)
    assert [row.id for row in study_rows.fold_rows(client.list_rows())] == [folder.id]

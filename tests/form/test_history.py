"""Earlier jobs are read from their folders, the newest first, without reading long logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdl_jupyter.core.events import EventWriter
from distdl_jupyter.core.spec import Captured, JobSpec, Source
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.form.history import past_jobs, values_of


def write(store: JobStore, number: int, *states: str, lines: int = 0) -> JobFolder:
    id_ = f"20261121-02491{number}-m8x{number}"
    folder = store.prepare(id_)
    spec = JobSpec(
        id=id_, name="digits", process_count_per_node=2, source=Source(code="def train(): ..."), created=1000.0,
        captured=(Captured(name="epochs", kind="value", detail="int = 100"), Captured(name="f", kind="function")),
    )  # fmt: skip
    folder.spec_file.write_text(spec.dumps())
    writer = EventWriter(folder.events)
    for state in states:
        for _ in range(lines):
            writer.write("log", rank=0, stream="out", text="x" * 100)
        writer.write("state", state=state, reason="")
    writer.write("note", level="info", text="the 'state' after the end", code="")
    writer.close()
    return store.publish(folder)


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


def test_a_finished_job_and_its_time(store: JobStore) -> None:
    write(store, 1, "running", "completed", lines=3000)
    (job,) = past_jobs(store)
    assert job.completed
    assert job.process_count == 2
    assert job.code == "def train(): ..."
    assert job.seconds is not None
    assert job.seconds > 1e6
    assert job.arguments == ("epochs: int = 100",)


@pytest.mark.parametrize(("states", "known"), [(("running",), False), (("running", "failed"), True), ((), False)])
def test_jobs_that_did_not_complete(store: JobStore, states: tuple[str, ...], known: bool) -> None:
    write(store, 1, *states)
    (job,) = past_jobs(store)
    assert not job.completed
    assert (job.seconds is not None) is known


def test_the_newest_come_first_and_no_more_than_asked(store: JobStore) -> None:
    for number in range(5):
        write(store, number, "completed")
    assert [job.id[-1] for job in past_jobs(store, newest=3)] == ["4", "3", "2"]


def test_broken_folders_are_passed_over(store: JobStore) -> None:
    write(store, 1, "completed")
    write(store, 2, "completed").spec_file.write_text("{")
    write(store, 3, "completed").events.write_bytes(b'{"type": "state", "state": \n\xff\n')
    assert [job.id[-1] for job in past_jobs(store)] == ["3", "1"]
    assert [job.completed for job in past_jobs(store)] == [False, True]


def test_values_tell_two_runs_apart() -> None:
    one = JobSpec(id="a", name="a", script_arguments=("--lr", "0.1"))
    two = JobSpec(id="a", name="a", script_arguments=("--lr", "0.2"))
    assert values_of(one) != values_of(two)

"""Sending outputs when a job has ended: a cancel ends it, what goes wrong is a warning."""

import time
from types import SimpleNamespace

import pytest

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.data import outputs
from distdl_jupyter.supervisor import run as under_test
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.written import all_written


@pytest.fixture
def deliver(tmp_path, monkeypatch):
    """Return ``deliver(work, canceled)``: the notes of a job whose outputs are sent by ``work(stopped)``."""
    monkeypatch.setattr(under_test, "_TICK_SECONDS", 0.001)
    spec = JobSpec(id="20261121-024912-k3f9x", name="x", outputs="blob://labdata/results")

    def run(work, canceled=lambda: False):
        monkeypatch.setattr(outputs, "upload", lambda *_, is_stopped, **_more: work(is_stopped))
        folder = JobFolder(tmp_path)
        recorder = EventRecorder(folder, spec)
        under_test.deliver_outputs(spec, recorder, failed=False, canceled=canceled)
        recorder.close()
        return [event["text"] for event in all_written(folder) if event["type"] in ("note", "log")]

    return run


def sent(files=2):
    return SimpleNamespace(file_count=files, byte_count=10, existing_count=0, warning="")


def test_outputs_are_sent_and_told(deliver):
    (said,) = deliver(lambda _stopped: sent())
    assert said.startswith("Sent 2 files, 10 B, to ")


def test_a_cancel_stops_what_is_sent_and_says_that_it_is_not_whole(deliver):
    def work(stopped):
        until = time.monotonic() + 5
        while not stopped() and time.monotonic() < until:
            time.sleep(0.001)
        return sent()

    (said,) = deliver(work, canceled=lambda: True)
    assert said.startswith("The outputs were not sent completely to")
    assert "because you canceled the job" in said


def test_what_cannot_be_sent_is_a_warning_with_the_place_where_it_stays(deliver, tmp_path):
    def work(_stopped):
        raise OSError("no route to host")

    (said,) = deliver(work)
    assert said == f"The outputs were not sent: no route to host. The files are still in {tmp_path}."

"""A silent job: a stall is told with what the stacks say, a hang is ended with a sentence, a sign ends a stall."""

import time
from types import SimpleNamespace

import pytest

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import hang_detector as under_test
from distdl_jupyter.supervisor.hang_detector import HangDetector
from distdl_jupyter.supervisor.recorder import EventRecorder


class Collector:
    """Stacks that are there at the next look."""

    def __init__(self, *_):
        self.busy, self.last = False, None

    def request(self, why):
        self.busy, self.why = True, why

    def tick(self):
        if not self.busy:
            return None
        self.busy = False
        self.last = SimpleNamespace(ranks={0: 1, 1: 2}, differ=(1,), sentence="rank 1 waits in allreduce",
                                    finding=None, collectives=())  # fmt: skip
        return self.last


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Make a hang detector for a running job of two ranks and its clock, whose seconds can be added to."""
    job = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: job.now, time=time.time))
    monkeypatch.setattr(under_test, "StackCollector", Collector)
    monkeypatch.delenv(under_test.VARIABLE, raising=False)

    def begin(**changes):
        spec = JobSpec(id="20261121-024912-k3f9x", name="x", process_count_per_node=2, **changes)
        job.recorder = EventRecorder(JobFolder(tmp_path), spec)
        job.detector = HangDetector(SimpleNamespace(), job.recorder)
        for state in (State.PREPARING, State.STARTING, State.RUNNING):
            job.recorder.state(state)
        job.recorder.connected.update((0, 1))
        sign()

    def sign():
        job.detector.on_event({"type": "metric", "rank": 0, "step": 1, "values": {}})

    job.begin, job.sign = begin, sign
    yield job
    job.recorder.close()


def test_a_stall_is_told_once_with_who_stands_where_and_ends_with_a_sign(job):
    job.begin()
    job.now += 299
    job.detector.tick()
    assert job.recorder.view.stall is None
    job.now += 2
    for _ in range(3):
        job.detector.tick()
        job.now += 1
    stall = job.recorder.view.stall
    assert stall.ranks == [1]
    assert stall.text.endswith("rank 1 waits in allreduce.")
    job.sign()
    job.detector.tick()
    assert job.recorder.view.stall is None


def test_a_hang_is_ended_with_the_limit_and_who_stands_where(job):
    job.begin(hang_timeout_seconds=30)
    job.now += 29
    job.detector.tick()
    assert job.detector.hang == ""
    job.now += 2
    job.detector.tick()
    assert job.detector.hang == "", "stacks come first"
    job.detector.tick()
    assert job.detector.hang == (
        "The job was stopped because no rank made progress for 30 s (hang_timeout_seconds): rank 1 waits in allreduce."
    )


def test_nothing_is_expected_of_a_job_that_is_stopped(job):
    job.begin(hang_timeout_seconds=30)
    job.recorder.state(State.CANCELING)
    job.now += 1000
    job.detector.tick()
    assert job.detector.hang == ""

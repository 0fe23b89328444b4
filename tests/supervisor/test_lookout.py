"""A silent job: a stall is told with what the stacks say, a hang is ended with a sentence, a sign ends a stall."""

import time
from types import SimpleNamespace

import pytest

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import lookout as under_test
from distdl_jupyter.supervisor import stacks
from distdl_jupyter.supervisor.ledger import Ledger
from distdl_jupyter.supervisor.lookout import Lookout


class Gathered:
    """Stacks that are there at the next look."""

    def __init__(self, *_):
        self.busy, self.last = False, None

    def ask(self, why):
        self.busy, self.why = True, why

    def tick(self):
        if not self.busy:
            return None
        self.busy = False
        self.last = SimpleNamespace(ranks={0: 1, 1: 2}, differ=(1,), sentence="rank 1 waits in allreduce")
        return self.last


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Make a lookout for a running job of two ranks and its clock, whose seconds can be added to."""
    job = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: job.now, time=time.time))
    monkeypatch.setattr(stacks, "Gathering", Gathered)
    monkeypatch.delenv(under_test.VARIABLE, raising=False)

    def begin(**changes):
        spec = JobSpec(id="20261121-024912-k3f9x", name="x", process_count_per_node=2, **changes)
        job.ledger = Ledger(JobFolder(tmp_path), spec)
        job.lookout = Lookout(SimpleNamespace(), job.ledger)
        for state in (State.PREPARING, State.STARTING, State.RUNNING):
            job.ledger.state(state)
        job.ledger.greeted.update((0, 1))
        sign()

    def sign():
        job.lookout.hear({"type": "metric", "rank": 0, "step": 1, "values": {}})

    job.begin, job.sign = begin, sign
    yield job
    job.ledger.close()


def test_a_stall_is_told_once_with_who_stands_where_and_ends_with_a_sign(job):
    job.begin()
    job.now += 299
    job.lookout.tick()
    assert job.ledger.view.stall is None
    job.now += 2
    for _ in range(3):
        job.lookout.tick()
        job.now += 1
    stall = job.ledger.view.stall
    assert stall.ranks == [1]
    assert stall.text.endswith("rank 1 waits in allreduce.")
    job.sign()
    job.lookout.tick()
    assert job.ledger.view.stall is None


def test_a_hang_is_ended_with_the_limit_and_who_stands_where(job):
    job.begin(hang_timeout_seconds=30)
    job.now += 29
    job.lookout.tick()
    assert job.lookout.hang == ""
    job.now += 2
    job.lookout.tick()
    assert job.lookout.hang == "", "stacks come first"
    job.lookout.tick()
    assert job.lookout.hang == (
        "The job was stopped, because no rank made progress for 30 s, its hang_timeout_seconds: "
        "rank 1 waits in allreduce."
    )


def test_nothing_is_expected_of_a_job_that_is_stopped(job):
    job.begin(hang_timeout_seconds=30)
    job.ledger.state(State.CANCELING)
    job.now += 1000
    job.lookout.tick()
    assert job.lookout.hang == ""

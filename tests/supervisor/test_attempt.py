"""Processes that outlive KILL end no wait for ever, and the process table is looked at once a second."""

import os
from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.base import Run, Start, Unkillable
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import attempt as under_test
from distdl_jupyter.supervisor import stop
from distdl_jupyter.supervisor.attempt import Attempt, Clock
from distdl_jupyter.supervisor.control import ControlReader, request
from distdl_jupyter.supervisor.recorder import EventRecorder


class Stuck(Run):
    """Two ranks that no signal reaches; ``left`` are the pids that live."""

    streams = ()

    def __init__(self, *left):
        self.left, self.looks, self.sent = left, 0, []

    def started(self):
        return [Start(0, 101), Start(1, 102)]

    def poll(self):
        return []

    def alive(self):
        self.looks += 1
        return self.left

    def unkillable(self):
        return [Unkillable("", pid) for pid in self.left]

    def signal(self, name):
        self.sent.append(name)

    def handle(self):
        return {}

    def close(self):
        return


class Passing:
    """A clock that goes on while nothing comes."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Return ``begin(run)``, an attempt of two ranks in which waiting takes no time."""
    clock, opened = Passing(), []
    for module in (under_test, stop):
        monkeypatch.setattr(module, "time", clock)

    def wait(_reader, seconds):
        clock.now += seconds
        assert clock.now < 2000, "it waits for ever"

    monkeypatch.setattr(under_test.LogReader, "run", wait)

    def make(run):
        folder = JobFolder(tmp_path)
        recorder = EventRecorder(folder, JobSpec(id="20261121-024912-k3f9x", name="x", process_count_per_node=2))
        for state in (State.PREPARING, State.STARTING, State.RUNNING):
            recorder.state(state)
        for start in run.started():
            recorder.write("rank", rank=start.rank, status="started", pid=start.pid)
        read, write = os.pipe()
        os.set_blocking(read, False)
        reader, backend = ControlReader(folder.control), SimpleNamespace(meets=False)
        made = Attempt(run, recorder, backend, reader, Clock(None), nonce="n", wake=read)
        opened.extend([lambda: os.close(read), lambda: os.close(write), made.close, recorder.close])
        return made, recorder, clock, folder

    yield make
    for close in reversed(opened):
        close()


def test_ranks_that_kill_does_not_reach_end_the_wait_with_a_sentence(begin):
    run = Stuck(101, 102)
    made, recorder, clock, folder = begin(run)
    request(folder.control, "cancel", now=True)
    made.watch()
    assert made.stopped_by == "user"
    assert made.reason == "Rank 0 cannot be ended (state D)."
    assert [rank.evidence for rank in recorder.view.ranks] == [f"Rank {n} cannot be ended (state D)." for n in (0, 1)]
    notes = [note["text"] for note in recorder.view.notes if note["code"] == "unkillable"]
    assert notes[1] == (
        "Rank 1 cannot be ended (state D): process 102 is blocked in the kernel, for example by a disk, a network "
        "folder or a device, and ends when that responds."
    )
    made.end_leftovers()
    assert clock.now - 1000 < 10
    assert set(run.sent) == {"KILL"}


def test_a_process_that_ranks_have_left_and_kill_does_not_reach_is_told_and_looked_at_once_a_second(begin):
    run = Stuck(103)
    made, recorder, clock, _ = begin(run)
    made.end_leftovers()
    (note,) = recorder.view.notes
    assert note["text"].startswith("Process 103 cannot be ended (state D): it is blocked in the kernel, ")
    assert clock.now - 1000 < 12
    assert run.looks < 20

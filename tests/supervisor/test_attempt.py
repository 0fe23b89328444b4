"""A job ends although KILL does not end its ranks."""

import os
from types import SimpleNamespace

from distdl_jupyter.clusters.base import Run, Start, UnkillableProcess
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import attempt as under_test
from distdl_jupyter.supervisor import stop
from distdl_jupyter.supervisor.attempt import Attempt, RunClock
from distdl_jupyter.supervisor.control import ControlReader, request
from distdl_jupyter.supervisor.recorder import EventRecorder


class Stuck(Run):
    """Two ranks that ignore every signal; ``left`` are the pids that are alive."""

    streams = ()

    def __init__(self, *left):
        self.left, self.sent = left, []

    def list_starts(self):
        return [Start(0, 101), Start(1, 102)]

    def poll(self):
        return []

    def list_alive(self):
        return self.left

    def list_unkillable(self):
        return [UnkillableProcess("", pid) for pid in self.left]

    def signal(self, name):
        self.sent.append(name)

    def handle(self):
        return {}

    def close(self):
        return


class Passing:
    """A clock that advances while the attempt waits."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now


def test_ranks_that_kill_does_not_reach_end_the_wait_with_a_sentence(tmp_path, monkeypatch):
    clock, run, folder = Passing(), Stuck(101, 102), JobFolder(tmp_path)
    for module in (under_test, stop):
        monkeypatch.setattr(module, "time", clock)

    def wait(_reader, seconds):
        clock.now += seconds
        assert clock.now < 2000, "it waits for ever"

    monkeypatch.setattr(under_test.LogReader, "run", wait)
    recorder = EventRecorder(folder, JobSpec(id="20261121-024912-k3f9x", name="x", process_count_per_node=2))
    for state in (State.PREPARING, State.STARTING, State.RUNNING):
        recorder.record_state(state)
    for start in run.list_starts():
        recorder.write("rank", rank=start.rank, status="started", pid=start.pid)
    read, write = os.pipe()
    os.set_blocking(read, False)
    backend = SimpleNamespace(meets=False)
    attempt = Attempt(run, recorder, backend, ControlReader(folder.control), RunClock(None), nonce="n", wake=read)
    request(folder.control, "cancel", now=True)
    attempt.watch()
    assert attempt.stopped_by == "user"
    assert attempt.reason == "Rank 0 cannot be ended (state D)."
    assert [rank.evidence for rank in recorder.view.ranks] == [f"Rank {n} cannot be ended (state D)." for n in (0, 1)]
    notes = [note["text"] for note in recorder.view.notes if note["code"] == "unkillable"]
    assert notes[1].startswith("Rank 1 cannot be ended (state D): process 102 is blocked in the kernel")
    attempt.stop_leftovers()
    assert clock.now - 1000 < 10
    assert set(run.sent) == {"KILL"}
    attempt.close()
    recorder.close()
    os.close(read)
    os.close(write)

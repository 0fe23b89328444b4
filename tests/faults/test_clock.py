"""Clocks that are set, submits in one instant, several that cancel at once: unique ids, one order, one end."""

import concurrent.futures
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import DistDLError, JobNotRunning, JobStillRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore, is_id
from tests.conftest import until_gone, wait_for
from tests.selection import few_or_all
from tests.written import all_written, events_of, lines

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("alone")]

#: Debian's libfaketime gives a real process another clock on the wall.
LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
with_another_clock = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")


def faked(**more):
    return {**os.environ, "LD_PRELOAD": str(LIBRARY), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1", **more}  # fmt: skip


MAKE = """
import sys, threading, time
from distdl_jupyter.jobs import client
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id

def make():
    spec, folder = client._prepare_folder(JobStore(), JobSpec(id=create_id(), name="one"))
    folder.spec_file.write_text(spec.dumps())
    JobStore().publish(folder)
    made.append(spec.id)

made = []
for _ in range(int(sys.argv[2])):
    threads = [threading.Thread(target=make) for _ in range(int(sys.argv[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(*made)
"""


def make(moment, threads=1, rounds=1):
    """Start a real process at that moment which makes jobs, and return it."""
    command = [sys.executable, "-c", MAKE, str(threads), str(rounds)]
    environment = faked(FAKETIME=moment) if moment else {**os.environ}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def made(process):
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return said.split()


@pytest.mark.full
@pytest.mark.fault("clock", "200 ids of one frozen instant, from threads of several processes, are all different")
@with_another_clock
def test_two_hundred_submits_in_the_same_instant(injected):
    processes = [make("2026-11-21 12:00:00", threads=10, rounds=5) for _ in range(4)]
    ids = [id_ for process in processes for id_ in made(process)]
    assert len(ids) == len(set(ids)) == 200
    assert all(map(is_id, ids))
    assert sorted(ids) == sorted(JobStore().list_ids())
    assert all(path.joinpath("spec.json").exists() for path in JobStore().jobs.iterdir())
    injected(200)


@pytest.mark.full
@pytest.mark.fault("clock", "the list keeps the order of submits, whatever the clock")
@with_another_clock
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_clock_set_back_between_submits(zone, injected, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    moments = ["2026-10-25 02:59:59", "2026-10-25 01:00:00", "2026-10-25 02:10:00", "2026-10-25 03:00:30",
               "2025-01-01 00:00:00", "2026-12-31 23:59:59", "1980-01-01 00:00:00"]  # fmt: skip
    ids = [id_ for moment in moments for id_ in made(make(moment, rounds=3))]
    assert JobStore().list_ids() == ids[::-1]
    assert len(set(ids)) == len(moments) * 3
    assert all(map(is_id, ids))
    injected(len(moments))


SUBMIT = """
import sys
from distdl_jupyter.api.submit_process import submit_source
print(submit_source(sys.argv[1], options={"max_run_duration_seconds": float(sys.argv[2])}).id)
"""
#: It sleeps by select, because libfaketime takes the moment until which time.sleep sleeps for one on the wall.
TRAIN = """
import os, select
from distdl_jupyter import log
step = 0
while not os.path.exists(UNTIL):
    log(step=step, loss=1.0)
    print(step)
    step += 1
    select.select([], [], [], 0.05)
"""


class Clock:
    """The wall clock of a job's processes, set while they run; submits, supervisor and ranks all have it."""

    def __init__(self, folder, limit=600.0):
        self._file, self._stop = folder / "clock", folder / "stop"
        self.set("+0")
        environment = faked(FAKETIME_TIMESTAMP_FILE=str(self._file))
        command = [sys.executable, "-c", SUBMIT, f"UNTIL = {str(self._stop)!r}\n{TRAIN}", str(limit)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        self.job = distdl_jupyter.attach(done.stdout.strip())
        wait_for(lambda: self.job.view().metrics, what="the first metric")

    def set(self, offset):
        self._file.write_text(offset + "\n")

    def stop(self):
        self._stop.touch()


def times(job, read=all_written):
    return [event["t"] for event in read(job.folder)]


@pytest.mark.full
@pytest.mark.fault("clock", "no time goes back, no duration is negative, no limit applies early; the job ends normally")
@with_another_clock
def test_a_clock_set_while_a_job_runs(tmp_path, injected):
    began = time.monotonic()
    clock = Clock(tmp_path)
    for offset in ("-3600", "-86400", "-7200"):
        clock.set(offset)
        seen = len(times(clock.job))
        wait_for(lambda seen=seen: len(times(clock.job)) > seen + 10, what="more events")
        injected()
    clock.stop()
    clock.job.wait(60)
    lasted = time.monotonic() - began
    view = clock.job.view()
    assert view.state is State.COMPLETED, view.reason
    for read in (events_of, lines):
        moments = times(clock.job, read)
        assert moments == sorted(moments)
    assert 0 < view.compute_run_time(0) <= lasted + 1
    assert all(phase.seconds is None or phase.seconds >= 0 for phase in view.phases)
    assert list(clock.job.metrics()["step"]) == list(range(len(clock.job.metrics())))


@pytest.mark.full
@pytest.mark.fault("clock", "a time limit is measured in elapsed time: setting the clock forward does not end the job")
@with_another_clock
def test_a_clock_set_forward_does_not_use_up_the_limit(tmp_path):
    clock = Clock(tmp_path, limit=100.0)
    clock.set("+86400")
    seen = len(times(clock.job))
    wait_for(lambda: len(times(clock.job)) > seen + 20, what="more events")
    assert not clock.job.view().state.ended
    clock.stop()
    clock.job.wait(60)
    assert clock.job.view().state is State.COMPLETED


WAIT = "import time\nfor step in range(1000):\n    print(step, flush=True)\n    time.sleep(0.05)"
CANCEL = """
import os, sys, time
from distdl_jupyter import attach
job = attach(sys.argv[1])
job.view()
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.001)
try:
    job.cancel(now=sys.argv[3] == "now")
except Exception as error:
    print(type(error).__name__)
"""


def ends(job):
    found = [event["state"] for event in all_written(job.folder) if event["type"] == "state"]
    return [state for state in found if State(state).ended], found


@pytest.mark.full
@pytest.mark.fault("clock", "20 cancels at the same moment, by kernel, command line and server: one end, canceled")
def test_many_cancel_at_once(server, tmp_path, injected):
    job = submit_source(WAIT)
    wait_for(lambda: job.state is State.RUNNING, what="running")
    now = tmp_path / "now"
    processes = [subprocess.Popen([sys.executable, "-c", CANCEL, job.id, now, "now" if n % 3 == 0 else "gently"],
                                  stdout=subprocess.PIPE, text=True) for n in range(8)]  # fmt: skip
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 8
    now.touch()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.ask, "POST", f"/jobs/{job.id}/cancel", json={"now": n % 2 == 0}) for n in range(11)]
        command = [sys.executable, "-m", "distdl_jupyter.cli", "stop", "--no-wait", job.id]
        line = pool.submit(subprocess.run, command, capture_output=True, check=False)
        assert {answer.result().status_code for answer in asked} <= {202, 409}
        assert line.result().returncode == 0
    assert {process.communicate(timeout=60)[0].strip() for process in processes} <= {"", "JobNotRunning"}
    job.wait(60)
    assert ends(job)[0] == ["canceled"]
    assert until_gone(job.id) == []
    with pytest.raises(JobNotRunning):
        job.cancel()
    injected(20)


@pytest.mark.fault("clock", "a cancel at the moment of the natural end: one end, either completed or canceled")
def test_a_cancel_at_the_natural_end(injected):
    for number in range(few_or_all(4, 100)):
        job = submit_source("import time\nprint('ready', flush=True)\ntime.sleep(0.2)")
        wait_for(lambda job=job: any(line.text == "ready" for line in job.logs()), what="the rank")
        time.sleep(0.1 + 0.02 * (number % 12))
        try:
            job.cancel(now=number % 2 == 0)
        except JobNotRunning:
            assert job.state is State.COMPLETED
        job.wait(60)
        last, all_ = ends(job)
        assert len(last) == 1, all_
        assert all_[-1] in ("completed", "canceled")
        assert until_gone(job.id) == []
        injected()


@pytest.mark.fault(
    "clock", "a job is not removed while it starts; if two remove an ended one, it is gone and one gets an error"
)
def test_remove_while_starting_and_twice(injected):
    job = submit_source("1")
    with pytest.raises(JobStillRunning):
        job.remove()
    job.wait(60)
    until_gone(job.id)

    def remove(_):
        try:
            distdl_jupyter.attach(job.id).remove()
        except DistDLError as error:
            return type(error).__name__
        return "removed"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        told = list(pool.map(remove, range(8)))
    assert told.count("removed") == 1
    assert set(told) <= {"removed", "JobNotFound"}
    assert JobStore().list_ids() == []
    assert list(JobStore().jobs.iterdir()) == []
    injected(8)

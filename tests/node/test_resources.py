"""What processes and this host use, as the system counts it."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from distdl_jupyter.node import devices
from distdl_jupyter.node.resources import Sampler
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

FORKS = """
import os, sys, time
held = bytearray(b"x" * 200_000_000)
for _ in range(3):
    if os.fork() == 0:
        break
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def start():
    started = []

    def of(code):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process

    yield of
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_pages_that_forked_children_share_count_once(start):
    process = start(FORKS)
    for _ in range(4):
        process.stdout.readline()
    ranks = Sampler().sample({0: process.pid}, [], {})["ranks"]
    assert 200e6 < ranks["0"][1] < 300e6


def test_a_child_that_burns_a_core_counts_for_its_rank(start):
    burns = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']).wait()"
    process, sampler = start(burns), Sampler()
    # Between its fork and its exec a process has no memory of its own, so a sample leaves it out.
    wait_for(lambda: (sampler.sample({0: process.pid}, [], {})["ranks"].get("0", [0])[0] or 0) > 15)


def test_a_rank_that_is_ending_is_never_told_to_need_no_memory(start):
    # So large that its end takes a while, in which it is sampled; it sleeps until it is killed here.
    process = start("held = bytearray(b'x' * 500_000_000); print('ready', flush=True); import time; time.sleep(60)")
    process.stdout.readline()
    sampler, told = Sampler(), []
    sampler.sample({0: process.pid}, [], {})
    process.kill()
    while process.poll() is None:
        told += [memory for _, memory in sampler.sample({0: process.pid}, [], {})["ranks"].values()]
    assert 0 not in told


def test_a_rank_that_ended_is_not_told_and_the_others_are(start):
    lives, ends = start("import time; time.sleep(60)"), start("pass")
    ends.wait()
    assert list(Sampler().sample({0: lives.pid, 1: ends.pid}, [], {})["ranks"]) == ["0"]


def test_the_host_tells_rates_from_the_second_sample_on(start):
    sampler = Sampler()
    first = sampler.sample({}, [], {})
    assert first["about"]["host"]
    assert first["about"]["cores"] >= 1
    assert first["node"]["cpu"] is None
    assert 0 < first["node"]["memory"] < first["node"]["limit"]
    busy = time.monotonic() + 0.2
    while time.monotonic() < busy:
        pass
    second = sampler.sample({}, [], {})
    assert "about" not in second
    assert second["node"]["cpu"] > 10


def test_a_host_without_a_driver_has_no_gpus_and_no_remark():
    if devices.read_driver_version():
        pytest.skip("this host has a driver")
    found = devices.GpuSampler({0: "0"})
    assert (found.describe(), found.sample()) == (([], ""), {})


def test_a_driver_that_does_not_answer_is_a_remark_and_no_error(monkeypatch):
    pytest.importorskip("pynvml")
    if devices.read_driver_version():
        pytest.skip("this host has a driver")
    monkeypatch.setattr(devices, "read_driver_version", lambda: "550.1")
    gpus, why = devices.GpuSampler({0: "0"}).describe()
    assert gpus == []
    assert why == "GPU utilization cannot be read: NVML Shared Library Not Found."


def test_without_the_library_the_remark_names_what_to_install(monkeypatch):
    monkeypatch.setattr(devices, "read_driver_version", lambda: "550.1")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in devices.GpuSampler({0: "0"}).describe()[1]

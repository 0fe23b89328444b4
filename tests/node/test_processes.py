"""What the process table says: which processes belong to a job, and which no signal reaches."""

import json
import os
import subprocess
import sys

import pytest

from distdl_jupyter.node import processes
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the states are Linux's")

#: The child opens a pipe that nobody writes to before it runs its program, and its parent waits in the kernel for that.
STUCK = """
import os, sys, threading
first = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
threading.Thread(target=lambda: os.posix_spawn("/bin/true", ["true"], {}, file_actions=[first])).start()
"""


def test_a_process_is_stuck_while_one_of_its_threads_waits_in_the_kernel(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path / "pipe")])
    try:
        wait_for(lambda: processes.find_stuck([process.pid]) == [process.pid], 30, "the state D")
        with open(tmp_path / "pipe", "w"):
            assert process.wait(30) == 0
    finally:
        process.kill()
    assert processes.find_stuck([process.pid]) == []


def test_a_process_that_sleeps_or_is_gone_is_not_stuck():
    with subprocess.Popen(["sleep", "600"]) as process:
        # On a busy machine a process that begins waits for its program's file.
        wait_for(lambda: processes.find_stuck([process.pid, os.getpid()]) == [])
        process.kill()
        assert processes.find_stuck([process.pid]) == []


@pytest.mark.parametrize("adopts", [True, False])
def test_children_count_as_the_job_s_where_orphans_are_adopted_and_asked_for(monkeypatch, adopts):
    monkeypatch.setattr(processes, "_is_subreaper", adopts)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    own = subprocess.Popen(["sleep", "600"])
    try:
        marks = {processes.MARK: "20261121-024912-k3f9x"}
        found = processes.find_job_pids(marks, orphans=True)
        assert (child.pid in found) == adopts
        assert own.pid not in found, "what this process runs for itself stays in its session"
        assert child.pid not in processes.find_job_pids(marks, excluded_pids=[child.pid], orphans=True)
        assert processes.find_job_pids(marks) == set()
    finally:
        for process in (child, own):
            process.kill()
            process.wait()


def test_a_job_s_processes_are_found_by_their_mark_with_what_they_have_started():
    marks = {processes.MARK: "20261121-024912-k3f9x"}
    process = subprocess.Popen(["sh", "-c", "env -i sleep 600 & wait"], env={**os.environ, **marks})
    try:
        wait_for(lambda: len(processes.find_job_pids(marks)) == 2, 30, "the shell and what it has started")
        assert process.pid in processes.kill_job(marks[processes.MARK])
        assert processes.find_job_pids(marks) == set()
    finally:
        process.kill()
        process.wait()


def test_the_process_table_is_the_same_without_proc(monkeypatch, tmp_path):
    marks = {processes.MARK: "20261121-024912-k3f9x"}
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, **marks})
    try:
        one = processes.read_table()[process.pid]
        monkeypatch.setattr(processes, "_PROC", tmp_path / "no-proc")
        assert processes.read_table()[process.pid] == one
        assert processes.find_job_pids(marks) == {process.pid}
        assert processes.find_workers([process.pid]) == []
    finally:
        process.kill()
        process.wait()


def test_signals_have_their_names():
    assert (processes.get_signal_name(9), processes.get_signal_name(250)) == ("KILL", "250")
    assert [processes.get_signal_number(name) for name in ("KILL", "34", "odd")] == [9, 34, 0]


def test_the_writer_of_a_mark_has_ended_only_when_that_is_proven():
    code = "import time; from distdl_jupyter.node import processes as p; print(p.make_mark(), flush=1); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        mark = writer.stdout.readline()
        assert not processes.has_ended(mark)
        writer.kill()
        wait_for(lambda: processes.has_ended(mark), what="its end, also before it is waited for")
    assert processes.has_ended(mark)
    elsewhere = {**json.loads(mark), "host": "node-b", "boot": "6f0c2c0e"}
    for other in (json.dumps(elsewhere), "", "no mark", processes.make_mark()):
        assert not processes.has_ended(other)

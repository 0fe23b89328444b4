"""A run's private folder: found dead when nobody holds its lifeline, and left alone while anybody does."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from distdl_jupyter.node import run_dir

JOB, OTHER = "20261121-024912-k3f9x", "20261121-024912-k3f9y"
HOLDS = (
    "import sys, time; from distdl_jupyter.node import run_dir as r;"
    "run = r.RunFolder(sys.argv[1]); print(run.path, flush=True); time.sleep(600)"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def held():
    """Start processes that hold the folder of a run each."""
    begun = []

    def hold(job):
        process = subprocess.Popen([sys.executable, "-c", HOLDS, job], stdout=subprocess.PIPE, text=True)
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield hold
    for process in begun:
        process.kill()
        process.wait()
        process.stdout.close()
    for job in (JOB, OTHER):
        run_dir.sweep(job)


def test_a_killed_process_that_still_holds_its_files_is_waited_for(held):
    killed, dead = held(JOB)
    timer = threading.Timer(0.3, killed.kill)
    timer.start()
    run_dir.sweep(JOB)
    timer.join()
    assert not os.path.exists(dead)


def test_the_folder_of_a_killed_run_goes_and_that_of_a_living_one_stays(held, monkeypatch):
    monkeypatch.setattr(run_dir, "_DYING_SECONDS", 0.1)
    killed, dead = held(JOB)
    _, living = held(JOB)
    _, other = held(OTHER)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    run_dir.sweep(JOB)
    assert [os.path.exists(path) for path in (dead, living, other)] == [False, True, True]
    assert os.stat(living).st_mode & 0o777 == 0o700
    shared = [Path("/dev/shm", Path(path).name) for path in (dead, living)]
    if shared[0].parent.exists():
        assert [path.exists() for path in shared] == [False, True]


def test_what_other_jobs_left_is_taken_away_when_it_is_not_new(held):
    killed, dead = held(OTHER)
    killed.kill()
    killed.wait()
    run_dir.sweep()
    assert os.path.exists(dead), "somebody may be making it"
    os.utime(dead, (time.time() - 120,) * 2)
    run_dir.sweep()
    assert not os.path.exists(dead)


def test_other_folders_and_links_stay(tmp_path):
    aside = tmp_path / "distdl-ports-0"
    aside.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.mkfifo(elsewhere / "alive")
    (tmp_path / "distdl-00000000-abcdefgh").symlink_to(elsewhere)
    (tmp_path / "distdl-00000000-nolifeln").mkdir()
    for path in tmp_path.iterdir():
        if not path.is_symlink():
            os.utime(path, (time.time() - 120,) * 2)
    before = sorted(tmp_path.iterdir())
    run_dir.sweep()
    assert sorted(tmp_path.iterdir()) == before
    assert (elsewhere / "alive").exists()


def test_a_folder_is_short_enough_for_a_socket(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run = run_dir.RunFolder(JOB, "shell")
    try:
        assert len(os.fsencode(run.path / "shell")) <= 107
    finally:
        run.close()
    assert not run.path.exists()

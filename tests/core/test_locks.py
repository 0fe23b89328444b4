"""Who holds a lock, as far as one host can tell, and file systems without locks."""

import fcntl
import json
import os
import resource
import subprocess
import sys
import time

import pytest

from distdl_jupyter.core import files
from distdl_jupyter.core.errors import DiskRefused
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.node import processes
from distdl_jupyter.supervisor.control import ControlReader
from tests.elsewhere import sign_elsewhere


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_the_holder_of_a_lock_writes_host_boot_and_process_into_it(path):
    lock = JobLock.acquire(path)
    said = json.loads(path.read_text())
    assert f"{said['host']}/{said['boot']}" == processes.identify_boot()
    assert said["pid"] == os.getpid()
    assert files.read_holder(path)[:2] == (True, "")
    lock.release()
    assert files.read_holder(path).is_dead


def test_a_new_holder_replaces_the_whole_text_of_the_last_one(path):
    path.write_text(json.dumps({"host": "a" * 64, "boot": "b" * 36, "pid": 4194304, "started": 10**15}))
    files.sign(path)
    assert json.loads(path.read_text()) == json.loads(processes.make_mark())


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({"boot": "another"}, True),
        ({"host": "another"}, True),
        ({"host": "another", "boot": "another"}, False),
    ],
    ids=["the same host switched on anew", "the same boot under another name", "another host"],
)
def test_a_free_lock_proves_an_end_on_its_own_host_only(path, changes, dead):
    path.write_text(json.dumps({**json.loads(processes.make_mark()), **changes}))
    assert files.read_holder(path).is_dead is dead
    assert files.read_holder(path).is_on_other_host is not dead
    lock = JobLock.acquire(path)
    assert (lock is not None) is dead
    if lock is not None:
        lock.release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "b"}', "\0" * 256])
def test_a_lock_without_a_valid_text_is_judged_by_the_lock_alone(path, text):
    path.write_text(text)
    assert files.read_holder(path).is_dead
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert files.read_holder(path).is_held


def test_a_lock_of_another_host_is_acquired_only_if_that_host_is_gone(path):
    sign_elsewhere(path, "login1")
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert JobLock.acquire(path) is None
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    lock = JobLock.acquire(path, of_other_host=True)
    assert files.read_holder(path)[:2] == (True, "")
    lock.release()


def test_another_host_was_heard_when_it_last_wrote_anything(path, tmp_path):
    sign_elsewhere(path, "login1", 500.0)
    log = tmp_path / "log"
    log.touch()
    assert files.read_holder(path, log).describe() == "Its supervisor runs on login1. Last heartbeat: just now."
    os.utime(log, (time.time() - 200, time.time() - 200))
    holder = files.read_holder(path, log)
    assert holder.is_silent
    assert holder.describe() == "Its supervisor runs on login1. Last heartbeat: 3 min ago."
    assert holder.get_remedy("20260101-000000-k3f9") == (
        "Check it on login1. If that host is gone for good, run: distdl lost k3f9")  # fmt: skip


def test_a_supervisor_that_reads_requests_touches_its_lock_now_and_then(path, tmp_path):
    path.touch()
    reader = ControlReader(tmp_path / "control", path)
    for expected in (True, False):
        os.utime(path, (1.0, 1.0))
        reader.read()
        assert (path.stat().st_mtime > 1.0) is expected


@pytest.fixture
def no_more_files():
    """A process that may open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_at_its_limit_of_open_files_declares_nobody_dead(path, request):
    path.write_text(processes.make_mark())
    assert files.read_holder(path).is_dead
    request.getfixturevalue("no_more_files")
    assert not files.read_holder(path).is_dead


#: Lets the kernel answer flock with ENOSYS, as Lustre without the option "flock" does (seccomp(2), on Linux).
WITHOUT_LOCKS = """
import ctypes, errno, platform, struct, sys
from pathlib import Path
number = {"x86_64": 73, "aarch64": 32}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *line) for line in code)
buffer = ctypes.create_string_buffer(program)
rules = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, rules, 0, 0):
    sys.exit(77)
from distdl_jupyter import submit
from distdl_jupyter.core.errors import DiskRefused
try:
    submit(abs, (-3,))
except DiskRefused as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp(2)")
def test_a_data_directory_without_locks_is_refused(distdl_home):
    done = subprocess.run([sys.executable, "-c", WITHOUT_LOCKS], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no process may filter its calls here")
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert f"{distdl_home / 'jobs'} is on a file system without file locks" in said
    assert "Set DISTDL_HOME to a folder on a local disk, or mount that" in said
    assert list((distdl_home / "jobs").iterdir()) == []


def test_locks_without_effect_are_refused(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(DiskRefused, match=r"without file locks.*DISTDL_HOME"):
        JobLock.acquire_new(path)

"""GPUs are held by one job at a time, and given back when it ends however it does."""

import os
import signal
import subprocess
import sys

import pytest

from distdl_jupyter.node import gpu_locks
from distdl_jupyter.node.gpu_locks import HeldGpus

ALL = ["GPU-a", "GPU-b", "MIG-GPU-c/1/0"]


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_free_gpus_come_first_and_are_given_back():
    first, second = HeldGpus(), HeldGpus()
    assert first.take(ALL, 1, "first") == ["GPU-a"]
    assert second.take(ALL, 2, "second") == ["GPU-b", "MIG-GPU-c/1/0"]
    assert gpu_locks.owners(ALL) == ["first", "second"]
    first.release()
    assert gpu_locks.owners(ALL) == ["second"]
    assert first.take(ALL, 1, "first again") == ["GPU-a"]
    for one in (first, second):
        one.release()
    assert gpu_locks.owners(ALL) == []


def test_too_few_free_gpus_leave_all_of_them_free():
    first, second = HeldGpus(), HeldGpus()
    first.take(ALL, 2, "first")
    assert second.take(ALL, 2, "second") == []
    assert gpu_locks.owners(ALL) == ["first"]
    assert HeldGpus().take(ALL, 1, "third") == ["MIG-GPU-c/1/0"]
    first.release()


def test_gpus_of_a_killed_process_are_free(tmp_path):
    code = (
        "import sys, tempfile, time; from distdl_jupyter.node.gpu_locks import HeldGpus;"
        "tempfile.tempdir = sys.argv[1]; held = HeldGpus(); held.take(['GPU-a'], 1, 'it');"
        "print('took', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"took\n"
    assert gpu_locks.owners(ALL) == ["it"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gpu_locks.owners(ALL) == []


def test_gpus_are_free_although_a_forked_process_has_inherited_the_lock():
    held = HeldGpus()
    held.take(ALL, 1, "it")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    held.release()
    assert gpu_locks.owners(ALL) == []
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)

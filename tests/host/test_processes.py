"""What the process table says of a process that no signal reaches."""

import os
import subprocess
import sys

import pytest

from distdl_jupyter.host import processes
from tests.conftest import wait_for
from tests.host.driver import STUCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the states are Linux's")


def test_a_process_is_stuck_while_one_of_its_threads_waits_in_the_kernel(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path / "pipe")])
    try:
        wait_for(lambda: processes.stuck([process.pid]) == [process.pid], 30, "the state D")
        with open(tmp_path / "pipe", "w"):
            assert process.wait(30) == 0
    finally:
        process.kill()
    assert processes.stuck([process.pid]) == []


def test_a_process_that_sleeps_or_is_gone_is_not_stuck():
    process = subprocess.Popen(["sleep", "600"])
    assert processes.stuck([process.pid, os.getpid()]) == []
    process.kill()
    assert processes.stuck([process.pid]) == []
    process.wait()

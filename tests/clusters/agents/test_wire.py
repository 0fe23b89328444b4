"""Links to many agents share one loop; the end of one does not affect the others."""

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.clusters.agents.links import python_link

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

#: Sends the handshake, echoes requests and exits at the end of its input; a child keeps its standard error open.
AGENT = """
import os, subprocess
from distdl_jupyter.node import channels
subprocess.Popen(["sleep", "3"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
reader = channels.FrameReader(expect_handshake=False)
os.write(1, channels.HANDSHAKE)
while content := os.read(0, 65536):
    for frame in reader.feed(content):
        if frame["type"] == "fingerprint":
            os.write(1, channels.encode_message("reply", request=frame["request"], path=frame["path"]))
"""


def met(number):
    """Connect to an agent, send it requests, and close the connection."""
    link, found = python_link(f"host-{number}", "-c", AGENT)
    found.start()
    try:
        assert found.handshake_done.wait(60)
        for turn in range(5):
            assert found.ask("fingerprint", timeout=30, path=f"{number} {turn}")["path"] == f"{number} {turn}"
    finally:
        found.close()
    return link.code


def test_hosts_that_come_and_go_keep_no_other_from_being_heard():
    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(met, range(60))) == {0}
    assert len(os.listdir("/proc/self/fd")) <= before + 3, "the loop's own"


def test_a_program_that_does_not_start_an_agent_is_told_by_its_last_words():
    link, found = python_link("host", "-c", "import sys; sys.exit('no such account')")
    found.start()
    found.close()
    assert (link.code, link.last_line) == (1, ": no such account")
    assert not psutil.pid_exists(link._process.get_pid())


def test_a_child_that_is_forked_takes_no_word_from_its_parent():
    _, found = python_link("host", "-c", AGENT)
    found.start()
    try:
        assert found.handshake_done.wait(60)
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert found.ask("fingerprint", timeout=10, path="still heard")["path"] == "still heard"
    finally:
        found.close()


def test_a_host_that_is_slow_to_begin_is_not_lost():
    link, found = python_link("host", "-c", "import time; time.sleep(1)\n" + AGENT)
    link.beat_seconds, link.max_idle_seconds = 0.05, 0.3
    found.start()
    try:
        assert found.handshake_done.wait(30)
    finally:
        found.close()

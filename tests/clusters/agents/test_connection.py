"""The connection of a supervisor to one host: a real ssh, a real agent, and their failures."""

import os
import queue
import signal
import time

import pytest

from distdl_jupyter.clusters import ssh
from distdl_jupyter.clusters.agents import connection
from distdl_jupyter.clusters.agents.agent import HostFailed
from distdl_jupyter.clusters.ssh import SshOptions
from tests.conftest import wait_for
from tests.hosts import needs_hosts

pytestmark = needs_hosts

JOB = "20260101-000000-wires"


@pytest.fixture
def lab(hosts_of):
    return hosts_of(1, own_processes=True)


@pytest.fixture
def reach(lab, tmp_path):
    made = []

    def begin(**options):
        chosen = SshOptions(**lab.options(directory=str(tmp_path / "base"), **options))
        (link,), _ = ssh.reach_all(ssh.parse_hosts(chosen)[:1], chosen)
        link.base = chosen.directory
        made.append(link)
        return link

    yield begin
    for one in made:
        one.close()


def start(link, code, process=0):
    """Start a program on a host and return its output."""
    if process == 0:
        link.ask("prepare", job=JOB, folder="/nowhere", proof=None, base=link.base)
    channel, output = link.open_stream()
    wanted = {"process": process, "argv": ["{python}", "-c", code], "environment": {}, "out": channel}
    link.ask("start", 30, processes=[wanted])
    return output


def test_what_a_host_refuses_is_one_sentence_with_its_name(reach):
    with pytest.raises(HostFailed) as told:
        reach().ask("start", processes=[])
    assert told.value.host == "node-a"
    assert "prepare" in told.value.reason


def test_the_package_is_unpacked_once(reach, tmp_path):
    reach().close()
    (lib,) = (tmp_path / "base" / "lib").iterdir()
    before = (lib / "distdl_jupyter" / "__init__.py").stat().st_ctime_ns
    reach().close()
    assert [lib] == list((tmp_path / "base" / "lib").iterdir())
    assert (lib / "distdl_jupyter" / "__init__.py").stat().st_ctime_ns == before


@pytest.fixture
def short_silence(monkeypatch):
    """A host is lost after few seconds of silence, of which a test waits for all."""
    monkeypatch.setattr(connection.Link, "max_idle_seconds", 4.0)


@pytest.mark.full
def test_who_reads_slowly_loses_nothing_and_keeps_nothing_waiting(reach, short_silence):
    link, size = reach(), 64 * 1024 * 1024
    end = start(link, f"import os\nos.write(1, b'begins')\nfor _ in range({size} // 65536): os.write(1, bytes(65536))")
    wait_for(lambda: end.unread > 8 * 1024 * 1024, 60, "that much waits")
    began = time.monotonic()
    while time.monotonic() - began < 1.5 * connection.Link.max_idle_seconds:
        assert end.unread < 24 * 1024 * 1024
        time.sleep(0.2)
    assert link.lost == ""
    left = size + len(b"begins")
    while content := end.read(1 << 20):
        left -= len(content)
    assert left == 0
    wait_for(lambda: link.ask("alive")["alive"] == 0, 30, "the end of the process, which may follow its last words")


def test_a_host_that_is_cut_off_is_lost_and_said_so(lab, reach, short_silence):
    link, news = reach(), queue.SimpleQueue()
    link.on_event = news.put
    end = start(link, "import time\ntime.sleep(600)")
    lab.cut("node-a")
    began = time.monotonic()
    told = news.get(timeout=60)
    assert time.monotonic() - began < 20
    assert told["type"] == "lost"
    assert told["reason"].startswith("No response from node-a for ")
    assert end.read(10) == b"", "its streams end"
    with pytest.raises(HostFailed, match="No response from"):
        link.ask("alive")
    _, late = link.open_stream()
    assert late.read(10) == b"", "nothing will come"


def test_an_agent_that_is_killed_is_told(lab, reach):
    link, news = reach(), queue.SimpleQueue()
    link.on_event = news.put
    start(link, "import time\ntime.sleep(600)")
    for pid in lab.running("node-a", "distdl_jupyter.node"):
        os.kill(pid, signal.SIGKILL)
        break
    while (event := news.get(timeout=60))["type"] != "lost":
        pass  # the end of a process that died with it
    assert "node-a" in event["reason"]

"""An agent that is reached through files: as over any wire, with and without a supervisor, and with another one."""

import json
import signal
import subprocess
import sys
import time

import pytest

from distdl_jupyter.clusters.agents import links
from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.agents.connection import Connection, end_all
from distdl_jupyter.clusters.agents.links import FolderLink
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import channels, folder
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

AGENT = (
    "import sys; from pathlib import Path; from distdl_jupyter.node import folder;"
    "folder.TIMEOUT_SECONDS, folder._LEAVE_SECONDS, folder._FAILURE_SECONDS = map(float, sys.argv[2:]);"
    "folder.serve(lambda watchdog: folder.FolderAgent(Path(sys.argv[1]), 0, watchdog))"
)


class Node:
    """The files of one node, and an agent at them."""

    def __init__(self, path):
        self.path = path
        for name in (*folder.get_file_names(0), folder.FAILED_FILE):
            (path / name).touch()
        self.inbox, self.read, self.out = (path / name for name in folder.get_file_names(0))
        self.process = None
        self.connections = []
        self.lost = ""

    def start(self, timeout=60.0, leave=20.0, failed=60.0):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", AGENT, str(self.path), str(timeout), str(leave), str(failed)]
        )

    def connect(self, *, takeover=False):
        link = FolderLink(self.path, 0, lambda: self.lost, takeover=takeover)
        found = Connection(Host("node-a", "node-a"), link, first_number=link.sent_bytes + 1)
        self.connections.append(found)
        return found

    def reached(self):
        found = self.connect()
        found.start()
        wait_for(found.handshake_done.is_set, what="the handshake")
        return found

    def prepared(self):
        found = self.reached()
        found.ask("prepare", job="folder-job", folder=str(self.path), proof=None, base=str(self.path / "base"))
        return found

    def started(self, connection, code):
        """Start a process; return its channel and its output."""
        channel, output = connection.open_stream()
        argv = ["{python}", "-c", code]
        process = {"process": 0, "argv": argv, "environment": {}, "directory": None, "out": channel}
        connection.ask("start", processes=[process])
        return channel, output

    def close(self):
        self.lost = "It is over."
        for one in self.connections:
            one.close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "GRACE_SECONDS", 0.3)
    found = Node(tmp_path)
    yield found
    found.close()


def test_requests_are_answered_and_what_a_process_prints_comes_with_its_end(node):
    node.start()
    events = []
    connection = node.prepared()
    connection.on_event = events.append
    _, printed = node.started(connection, "print('x' * 3_000_000); raise SystemExit(3)")
    assert len(printed.read(10**9)) == 3_000_001
    (end,) = wait_for(lambda: events)
    assert (end["type"], end["process"], end["code"]) == ("exit", 0, 3)
    assert (node.path / folder.FAILED_FILE).read_text() == "3"
    end_all([connection])
    assert node.process.wait(10) == 0


def test_what_was_read_is_overwritten(node):
    node.start()
    connection = node.reached()
    connection.ask("fingerprint", path="/a-signature-of-azure")
    size = node.inbox.stat().st_size
    assert size > 0
    wait_for(lambda: not node.inbox.read_bytes()[:size].strip(b"\0"), what="zeros")


def test_half_a_frame_of_a_supervisor_that_died_is_cut_off_by_the_next_one(node):
    node.start()
    first = node.reached()
    first.ask("fingerprint", path="/nowhere")
    first.link.stop()
    with node.inbox.open("ab") as file:
        file.write(channels.encode_message("fingerprint", request=7, path="/")[:9])
    second = node.connect(takeover=True)
    second.start()
    assert second.ask("fingerprint", path=sys.executable)["fingerprint"]


def test_another_supervisor_reads_on_where_the_first_one_stopped_and_hears_of_each_end(node):
    node.start()
    first = node.prepared()
    channel, printed = node.started(first, "import time\nfor n in range(30): print(n, flush=True); time.sleep(0.05)")
    begin = printed.read(len("0\n1\n2\n3\n4\n"))
    first.link.stop()  # it hears no more
    second = node.connect(takeover=True)
    events = []
    second.on_event = events.append
    output = second.reopen(channel, len(begin))
    second.start()
    assert begin + output.read(10**9) == b"".join(b"%d\n" % number for number in range(30))
    wait_for(lambda: [event for event in events if event["type"] == "exit"], what="the end")
    assert second.ask("alive")["alive"] == 0


def test_a_supervisor_that_prepares_anew_ends_what_an_earlier_one_had_begun(node):
    node.start()
    first = node.prepared()
    node.started(first, "import time; time.sleep(600)")
    assert first.ask("alive")["alive"] == 1
    first.ask("prepare", job="folder-job", folder=str(node.path), proof=None, base=str(node.path / "base"))
    assert first.ask("alive")["alive"] == 0


@pytest.mark.parametrize("begun", [False, True])
def test_without_a_supervisor_the_node_is_given_back_when_no_rank_runs(node, begun):
    node.start(timeout=60.0 if begun else 1.0, leave=1.0)
    if begun:
        connection = node.prepared()
        connection.link.beat_seconds = 1e9
        node.started(connection, "import time; time.sleep(4)")
        time.sleep(2.5)
        assert node.process.poll() is None, "a rank still trains"
    assert node.process.wait(20) == 1


def test_without_a_supervisor_ranks_end_when_another_node_s_have_failed(node):
    node.start(leave=1.0, failed=1.0)
    connection = node.prepared()
    connection.link.beat_seconds = 1e9
    node.started(connection, "import time; time.sleep(600)")
    (node.path / folder.FAILED_FILE).write_text("9")
    assert node.process.wait(30) == 1


@pytest.mark.parametrize(
    ("handler", "end"), [("", (None, "TERM")), ("signal.signal(15, lambda *_: sys.exit(4))\n", (4, None))]
)
def test_sigterm_reaches_ranks_whose_ends_are_told_before_the_agent_leaves(node, handler, end):
    node.start()
    events = []
    connection = node.prepared()
    connection.on_event = events.append
    code = f"import signal, sys, time\n{handler}print('here', flush=True)\ntime.sleep(600)"
    _, printed = node.started(connection, code)
    assert printed.read(5) == b"here\n"
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(20) == 1
    (told,) = wait_for(lambda: [event for event in events if event["type"] == "exit"], what="the end")
    assert (told["code"], told["signal"]) == end


def test_an_agent_that_reads_nothing_is_told_by_its_file(node, monkeypatch):
    monkeypatch.setattr(links, "_TAKEOVER_SECONDS", 0.5)
    node.inbox.write_bytes(channels.encode_message("fingerprint", request=1, path="/"))
    with pytest.raises(LaunchFailed, match=r"does not read its messages from .*node-0\.in"):
        node.connect(takeover=True)


def test_whole_frames_are_counted():
    one, two = channels.encode_message("a", text="x"), channels.encode_data(7, b"y" * 10)
    for cut in range(1, len(two)):
        assert channels.measure_complete(one + two[:-cut]) == len(one)
    assert channels.measure_complete(one + two) == len(one + two)
    assert channels.measure_complete(json.dumps({}).encode()[:2]) == 0
    with pytest.raises(channels.InvalidFrame):
        channels.measure_complete(b"no frame at all")

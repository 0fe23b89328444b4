"""Local sockets that lead to ranks on other hosts: private to this user, and removed with the run."""

import contextlib
import json
import os
import socket
import stat
from concurrent.futures import Future
from pathlib import Path

import pytest

from distdl_jupyter.clusters.agents import connection as agent_connection
from distdl_jupyter.clusters.agents.connection import RankRelay
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.worker.rank_socket import open_listener
from tests.clusters.agents.links import python_link
from tests.conftest import wait_for


class Recorded:
    """A connection to an agent that records its requests."""

    def __init__(self):
        self.asked, self.sent, self.sinks = [], [], []

    def open_channel(self, sink, hold=bool):
        self.sinks.append(sink)
        return len(self.sinks)

    def begin(self, type_, **fields):
        self.asked.append((type_, fields))
        answer = Future()
        answer.set_result({})
        return answer

    def write(self, channel, content, *, wait=True):
        self.sent.append((channel, content))


@pytest.fixture
def offered(tmp_path):
    """A relay with one rank, the agent's end of it, and its note."""
    relay, agent, answer = RankRelay(JobFolder(tmp_path)), Recorded(), Future()
    failures = []
    relay.offer(agent, 3, answer, failures.append)
    answer.set_result({"socket": "/there/rank-3.sock", "token": "its own", "rank": 3, "pid": 7})
    note = tmp_path / "serving" / "rank-3.json"
    wait_for(note.exists)
    yield agent, json.loads(note.read_text())
    assert not failures
    relay.close()
    wait_for(lambda: not os.path.lexists(os.path.dirname(json.loads(note.read_text())["socket"])))


def connected(note):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(note["socket"])
    return connection


def test_a_note_names_a_private_socket_here_and_the_ranks_own_token(offered):
    _, note = offered
    assert note["token"] == "its own"
    assert stat.S_IMODE(os.lstat(note["socket"]).st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(os.path.dirname(note["socket"])).st_mode) == 0o700


def test_a_connection_is_carried_to_the_rank_until_it_hangs_up(offered):
    agent, note = offered
    with connected(note) as connection:
        connection.sendall(b"hello")
        wait_for(lambda: agent.sent)
        assert agent.asked == [("connect", {"rank": 3, "channel": 1})]
        assert agent.sent == [(1, b"hello")]
        agent_connection.get_loop().call_soon_threadsafe(agent.sinks[0], b"and back")
        assert connection.recv(100) == b"and back"
        agent_connection.get_loop().call_soon_threadsafe(agent.sinks[0], b"")
        assert connection.recv(100) == b""


def test_another_user_is_hung_up_on_before_the_agent_is_asked(offered, monkeypatch):
    agent, note = offered
    monkeypatch.setattr(agent_connection, "read_uid", lambda _connection: os.getuid() + 1)
    with connected(note) as stranger, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stranger.sendall(b"hello")
        assert stranger.recv(100) == b""
    assert (agent.asked, agent.sent, agent.sinks) == ([], [], [])


@pytest.fixture
def met(tmp_path):
    """A real agent, the two ends of a connection through it: the kernel's and the rank's."""
    _, connection = python_link("node", "-m", "distdl_jupyter.node", "20")
    connection.start()
    wait_for(connection.handshake_done.is_set)
    found = connection.ask("prepare", job="20260101-000000-relay", folder="/nowhere", proof=None, base=str(tmp_path))
    run = Path(found["run"])
    listener = open_listener(run / "rank-0.sock")
    (run / "rank-0.json").write_text(json.dumps({"socket": str(run / "rank-0.sock"), "token": "x", "rank": 0}))
    relay = RankRelay(JobFolder(tmp_path))
    failures = []
    relay.offer(connection, 0, connection.begin("serving", rank=0), failures.append)
    note = tmp_path / "serving" / "rank-0.json"
    wait_for(note.exists)
    kernel = connected(json.loads(note.read_text()))
    rank, _ = listener.accept()
    rank.settimeout(30)
    yield kernel, rank
    for one in (kernel, rank, listener):
        one.close()
    connection.close()
    relay.close()
    assert not failures


def test_a_kernel_that_was_killed_while_its_rank_waits_is_told_to_the_rank(met):
    kernel, rank = met
    rank.settimeout(2)
    with pytest.raises(TimeoutError):
        rank.sendall(bytes(64 << 20))
    rank.settimeout(30)
    kernel.close()
    assert rank.recv(10) == b""
    rank.sendall(bytes(32 << 20))  # it is not left waiting for who is gone

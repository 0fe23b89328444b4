"""The port to which agents connect back stays open to them, whoever else connects."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time

import pytest

from distdl_jupyter.clusters.agents import links
from distdl_jupyter.clusters.agents.links import AgentListener
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")


@pytest.fixture
def port():
    port = AgentListener("127.0.0.1", "{} is gone.".format)
    yield port
    port.close()
    port.disconnect()


def connect(port, certificate=""):
    """Connect as an agent does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate or port.connect_info["certificate"])
    with socket.create_connection((port.connect_info["host"], port.connect_info["port"]), timeout=30) as plain:
        return context.wrap_socket(plain)  # takes the descriptor over


def hello(port, **fields):
    """Return the line that an agent sends first, with ``fields``."""
    line = {"secret": port.connect_info["secret"], "number": 0, "attempt": 0, "hostname": "a", "address": "127.0.0.1"}
    return json.dumps(line | fields).encode() + b"\n"


def connect_silently(port, count):
    """Start another process that opens connections and sends nothing."""
    code = (
        "import socket, time; opened = []\n"
        f"for _ in range({count}): opened.append(socket.socket()); opened[-1].setblocking(False); "
        f"opened[-1].connect_ex({(port.connect_info['host'], port.connect_info['port'])!r})\n"
        "print('open', flush=True); time.sleep(60)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


@pytest.mark.fault("entry", "thousands of connections that send nothing: the nodes of the job still connect")
def test_a_node_connects_beside_thousands_of_silent_connections(port):
    before = len(os.listdir("/proc/self/fd"))
    silent = [connect_silently(port, 900) for _ in range(3)]
    most = before + 350
    try:
        for process in silent:
            assert process.stdout.readline() == b"open\n"
        assert len(os.listdir("/proc/self/fd")) < most
        with connect(port) as stream:
            stream.sendall(hello(port, number=3))
            wait_for(lambda: port.agents, 20, "the node of the job")
            assert list(port.agents) == [3]
        assert len(os.listdir("/proc/self/fd")) < most
    finally:
        for process in silent:
            process.kill()
            process.communicate()


def test_all_nodes_of_a_large_job_connect_at_the_same_time(port):
    with contextlib.ExitStack() as streams:
        nodes = [streams.enter_context(connect(port)) for _ in range(128)]
        time.sleep(0.5)  # the machine is busy
        for number, stream in enumerate(nodes):
            stream.sendall(hello(port, number=number))
        wait_for(lambda: len(port.agents) == len(nodes), 20, "all nodes")


def test_a_connection_without_a_handshake_or_a_line_is_closed_after_some_seconds(port, monkeypatch):
    monkeypatch.setattr(links, "_HELLO_SECONDS", 0.5)
    with (
        socket.create_connection((port.connect_info["host"], port.connect_info["port"])) as plain,
        connect(port) as stream,
    ):
        for connection in (plain, stream):
            connection.settimeout(5)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert connection.recv(1) == b""
    assert port.agents == {}


@pytest.mark.parametrize(
    "line",
    [
        {"secret": "guessed"},
        {"secret": None},
        {"secret": "\u00b2"},
        {"number": "x"},
        {"number": []},
        {"attempt": 1},
        b"{}\n",
        b"[]\n",
        b"what\n",
        b"[" * 50_000 + b"\n",
        b"x" * 100_000 + b"\n",
    ],
)
def test_a_connection_that_is_not_of_this_job_is_closed_and_not_counted(port, line):
    with connect(port) as stream:
        assert stream.version() == "TLSv1.3"
        stream.settimeout(5)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            stream.sendall(line if isinstance(line, bytes) else hello(port, **line))
            assert stream.recv(1) == b""
    assert port.agents == {}
    with connect(port) as stream:
        stream.sendall(hello(port))
        wait_for(lambda: port.agents, 5, "the node of the job")


def test_each_node_connects_once(port):
    with connect(port) as first, connect(port) as second:
        first.sendall(hello(port))
        wait_for(lambda: port.agents, 5, "the first connection")
        second.sendall(hello(port, hostname="other"))
        second.settimeout(5)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert second.recv(1) == b""
        assert [caller.hostname for caller in port.agents.values()] == ["a"]


def test_each_port_has_its_own_certificate_and_secret(port):
    other = AgentListener("127.0.0.1", "{} is gone.".format)
    try:
        assert other.connect_info["secret"] != port.connect_info["secret"]
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(other, port.connect_info["certificate"])
    finally:
        other.close()


def test_a_closed_port_refuses(port):
    port.close()

    def is_refused():
        try:
            socket.create_connection((port.connect_info["host"], port.connect_info["port"]), timeout=5).close()
        except OSError:
            return True
        return False

    wait_for(is_refused)

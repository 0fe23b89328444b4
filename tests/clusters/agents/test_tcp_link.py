"""The port to which agents connect back stays open to them, whoever else connects."""

import contextlib
import json
import os
import socket
import ssl
import sys
import time

import pytest

from distdl_jupyter.clusters.agents import tcp_link
from distdl_jupyter.clusters.agents.tcp_link import Port
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")


@pytest.fixture
def port():
    made = Port("127.0.0.1", str)
    yield made
    made.close()
    made.cut()


def connect(back, **hello):
    """Connect as an agent does, and say what it says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=back["certificate"])
    stream = context.wrap_socket(socket.create_connection((back["host"], back["port"]), timeout=30))
    told = {"secret": back["secret"], "number": 0, "attempt": 0, "hostname": "a", "address": "127.0.0.1", **hello}
    stream.sendall(json.dumps(told).encode() + b"\n")
    return stream


def test_silent_connections_keep_no_agent_out_and_hold_few_descriptors(port):
    before = len(os.listdir("/proc/self/fd"))
    silent = []
    with contextlib.ExitStack() as stack:
        for _ in range(1_000):
            silent.append(stack.enter_context(socket.create_connection((port.back["host"], port.back["port"]))))
        with connect(port.back, number=3):
            assert wait_for(lambda: port.callers.get(3)).hostname == "a"
        for _ in range(50):
            time.sleep(0.01)
            assert len(port._unproven) <= tcp_link._MAX_UNPROVEN
        held = len(os.listdir("/proc/self/fd")) - before - len(silent)
        assert held < 2 * tcp_link._MAX_UNPROVEN
    assert list(port.callers) == [3]


def test_a_silent_connection_is_ended_after_some_seconds(port, monkeypatch):
    monkeypatch.setattr(tcp_link, "_HELLO_SECONDS", 0.5)
    with socket.create_connection((port.back["host"], port.back["port"]), timeout=30) as silent:
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    "hello",
    [{"secret": "guessed"}, {"secret": None}, {"number": "x"}, {"number": []}, {"attempt": 1}, {"secret": "\u00b2"}],
)
def test_what_is_not_an_agent_of_this_job_is_cut(port, hello):
    with connect(port.back, **hello) as stream, contextlib.suppress(ConnectionError):
        assert stream.recv(1) == b""
    assert port.callers == {}
    with connect(port.back):
        assert wait_for(lambda: port.callers)


def test_each_place_connects_once(port):
    with connect(port.back) as first, connect(port.back) as second:
        assert wait_for(lambda: port.callers)
        with contextlib.suppress(ConnectionError):
            assert (second if wait_for(lambda: port.callers) else first).recv(1) == b""
        assert len(port.callers) == 1


def test_a_closed_port_refuses(port):
    port.close()
    back = port.back

    def refused():
        try:
            socket.create_connection((back["host"], back["port"]), timeout=5).close()
        except OSError:
            return True
        return False

    wait_for(refused)

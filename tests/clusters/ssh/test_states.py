"""States of real hosts, as lists show them."""

import sys
import time
from unittest.mock import Mock

import pytest

from distdl_jupyter.clusters.agents.agent import HostFailed, Unreachable
from distdl_jupyter.clusters.ssh import cluster, command
from distdl_jupyter.clusters.ssh.cluster import SshCluster
from distdl_jupyter.clusters.ssh.hosts import SshOptions
from tests.conftest import wait_for
from tests.hosts import needs_hosts


@pytest.fixture(autouse=True)
def forget():
    yield
    cluster.close_connections()
    cluster._states.clear()


@pytest.fixture
def hosts_of(hosts_of):
    yield hosts_of
    cluster.close_connections()  # while the hosts answer


@pytest.fixture
def soon(monkeypatch):
    """Report a silent host after few seconds, because tests wait for it."""
    monkeypatch.setattr(cluster, "QUERY_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 4.0)
    monkeypatch.setitem(command._SETTINGS, "ConnectTimeout", "3")


def states(options, timeout=0.0):
    return {node.name: node.state for node in cluster.host_states(options, timeout)}


def options_of(lab, **more):
    return SshOptions(**lab.options(**more))


def all_up(options):
    return set(states(options).values()) == {"up"}


@needs_hosts
def test_hosts_show_what_they_have(three_hosts):
    options = options_of(three_hosts)
    wait_for(lambda: all_up(options), what="three hosts")
    node = cluster.host_states(options)[1]
    assert node.name == "node-b"
    assert node.python == ".".join(map(str, sys.version_info[:3]))
    assert node.cores > 0
    assert node.load >= 0
    assert node.ranks == 0
    assert (node.gpus, node.gpu_name, node.detail) == (0, "", "")


@needs_hosts
def test_a_host_that_never_answered_delays_nobody(hosts_of, soon):
    lab = hosts_of(2)
    lab.cut("node-a")
    options = options_of(lab)
    begin = time.monotonic()
    silent, _ = cluster.host_states(options, 0.0)
    assert time.monotonic() - begin < 1
    assert (silent.state, silent.detail) == ("unknown", "no response yet")
    wait_for(lambda: states(options)["node-b"] == "up", what="the other host")
    wait_for(lambda: states(options)["node-a"] == "down", what="a red host")
    assert cluster.host_states(options)[0].detail.startswith("no response since ")


@needs_hosts
def test_the_reason_is_told_and_a_check_after_the_remedy_tries_again_at_once(hosts_of):
    lab = hosts_of(1)
    lab.forget_host_key("node-a")
    options = options_of(lab)
    wait_for(lambda: states(options)["node-a"] == "down", what="a red host")
    assert "host key" in cluster.host_states(options)[0].detail
    lab.know_all()
    SshCluster().checks(options)
    # By itself it would be tried again after half a minute.
    wait_for(lambda: states(options)["node-a"] == "up", 20, "a green host")


@needs_hosts
def test_a_host_that_nobody_looks_at_any_more_is_left(hosts_of, monkeypatch):
    monkeypatch.setattr(cluster, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(cluster, "QUERY_SECONDS", 0.2)
    lab = hosts_of(1)
    options = options_of(lab)
    wait_for(lambda: all_up(options), what="a host")
    assert lab.running("node-a", "distdl_jupyter.node")
    wait_for(lambda: not lab.pids("node-a"), what="a host that is left")
    assert states(options)["node-a"] == "up"  # what was seen moments ago, while it is asked anew
    wait_for(lambda: lab.running("node-a", "distdl_jupyter.node"), what="a new connection")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Unreachable("a", "timeout", "The host does not respond."), "no response since "),
        (HostFailed("a", "No response from a for 10 s."), "no response since "),
        (Unreachable("a", "denied", "It rejected all keys."), "It rejected all keys."),
    ],
)
def test_a_host_is_down_with_its_reason_or_since_when(monkeypatch, error, detail):
    monkeypatch.setattr(cluster, "reach", Mock(side_effect=error))
    assert cluster.host_states(SshOptions(hosts="a"), 30.0)[0].detail.startswith(detail)

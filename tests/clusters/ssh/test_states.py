"""States of real hosts, as lists show them."""

import sys
import time
from unittest.mock import Mock

import pytest

from distdl_jupyter.clusters import ssh
from distdl_jupyter.clusters.agents.agent import ReachError
from distdl_jupyter.clusters.ssh import SshCluster, SshOptions
from tests.conftest import wait_for
from tests.hosts import needs_hosts


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """States are queried anew after a moment, because tests wait for it."""
    monkeypatch.setattr(ssh, "QUERY_SECONDS", 0.5)
    monkeypatch.setattr(ssh, "_states", {})


def states(options, timeout=20.0):
    return {node.name: node.state for node in SshCluster().list_nodes(options, timeout)}


def options_of(lab, **more):
    return SshOptions(**lab.options(**more))


@needs_hosts
def test_hosts_show_what_they_have_and_no_agent_is_left(three_hosts):
    options = options_of(three_hosts)
    assert set(states(options).values()) == {"up"}
    node = SshCluster().list_nodes(options)[1]
    assert node.name == "node-b"
    assert node.python == ".".join(map(str, sys.version_info[:3]))
    assert node.cores > 0
    assert node.load >= 0
    assert node.ranks == 0
    assert (node.gpus, node.gpu_name, node.detail) == (0, "", "")
    wait_for(lambda: not any(map(three_hosts.pids, three_hosts.names)), what="the end of everything on the hosts")


@needs_hosts
def test_a_silent_host_delays_the_others_by_the_timeout_only(hosts_of):
    lab = hosts_of(2)
    lab.cut("node-a")
    options = options_of(lab)
    begin = time.monotonic()
    silent, other = SshCluster().list_nodes(options, 4.0)
    assert time.monotonic() - begin < 12
    assert (silent.state, silent.detail, other.state) == ("down", "The host does not respond.", "up")


@needs_hosts
def test_the_reason_is_told_and_a_check_after_the_remedy_tries_again_at_once(hosts_of, monkeypatch):
    monkeypatch.setattr(ssh, "QUERY_SECONDS", 60.0)
    lab = hosts_of(1)
    lab.forget_host_key("node-a")
    options = options_of(lab)
    (node,) = SshCluster().list_nodes(options, 20.0)
    assert node.state == "down"
    assert "host key" in node.detail
    lab.know_all()
    assert states(options) == {"node-a": "down"}  # by itself it is tried again after a minute
    SshCluster().run_checks(options)
    assert states(options) == {"node-a": "up"}


@pytest.mark.parametrize(("kind", "asked"), [("denied", 1), ("timeout", 2)])
def test_a_host_that_refused_a_login_is_not_tried_again_soon(monkeypatch, kind, asked):
    monkeypatch.setattr(ssh, "QUERY_SECONDS", 0.0)
    reach = Mock(side_effect=lambda hosts, *_, **__: ([], [ReachError("a", kind, "It is not reachable.")] * len(hosts)))
    monkeypatch.setattr(ssh, "reach_all", reach)
    for _ in range(2):
        assert SshCluster().list_nodes(SshOptions(hosts="a"), 30.0)[0].detail == "It is not reachable."
    assert sum(len(call.args[0]) for call in reach.call_args_list) == asked

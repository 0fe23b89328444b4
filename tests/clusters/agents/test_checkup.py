"""Checks of real hosts over real ssh."""

import contextlib
import time
from concurrent.futures import Future

import pytest

from distdl_jupyter.clusters import ssh
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import AgentConnection
from distdl_jupyter.clusters.ssh import SshCluster, SshOptions, connect_temporarily
from tests.conftest import wait_for
from tests.hosts import IP, needs_hosts, run

pytestmark = needs_hosts


def check(lab, modules=("torch",), programs=(), **options):
    return SshCluster().run_checks(SshOptions(**lab.options(**options)), modules=modules, programs=programs)


def red(rows):
    return [row for row in rows if row.level == "error"]


def of(rows, what):
    return {row.node: row for row in rows if row.what == what}


@contextlib.contextmanager
def rule(lab, name, *words):
    """Let a host's own packets of some kind vanish."""
    at = (IP, "-n", lab.space(name), "rule")
    run(*at, "add", *words, "blackhole")
    try:
        yield
    finally:
        run(*at, "del", *words, "blackhole")


def test_all_is_well_on_three_hosts_whose_interfaces_have_different_names(three_hosts):
    rows = check(three_hosts, programs=("mpirun",))
    assert {row.level for row in rows} == {"ok", "info"}
    assert {name: row.message for name, row in of(rows, "Network").items()} == {
        name: f"{three_hosts.address('node-a')[:-2]}0/24 on {three_hosts.interface(name)}" for name in three_hosts.names
    }
    for what in ("Reachable", "Host key", "Python", "torch", "GPUs", "InfiniBand", "Disk", "Clock", "mpirun"):
        assert sorted(of(rows, what)) == three_hosts.names, what
    assert of(rows, "Ports")[""].level == "ok"
    wait_for(lambda: not any(map(three_hosts.pids, three_hosts.names)), what="the end of everything on the hosts")


def test_a_host_that_is_cut_off_is_named_within_half_a_minute_and_the_others_are_looked_at(three_hosts, monkeypatch):
    assert ssh.CONNECT_SECONDS + checkup.CHECK_SECONDS < 30
    monkeypatch.setitem(ssh._SETTINGS, "ConnectTimeout", "3")
    three_hosts.cut("node-c")
    try:
        begin = time.monotonic()
        rows = check(three_hosts)
        assert time.monotonic() - begin < 3 + checkup.CHECK_SECONDS
    finally:
        three_hosts.join("node-c")
    assert [(row.node, row.what, row.message) for row in red(rows)] == [
        ("node-c", "Reachable", "The host does not respond.")
    ]
    assert sorted(of(rows, "Network")) == ["node-a", "node-b"]


def test_hosts_that_do_not_reach_each_other_are_named_with_the_direction(three_hosts):
    """What node-a sends to high ports of node-b is dropped, so both ways fail, and only between these two."""
    with rule(three_hosts, "node-a", "to", three_hosts.address("node-b"), "ipproto", "tcp", "dport", "1024-65534"):
        rows = red(check(three_hosts))
    assert {(row.node, row.what) for row in rows} == {("node-a", "Ports"), ("node-b", "Ports")}
    assert any(row.message.startswith("node-a does not reach node-b at ") for row in rows)
    assert any(row.message.startswith("node-b does not reach node-a at ") for row in rows)
    assert all("Allow TCP from node-" in row.remedy for row in rows)


class Late(AgentConnection):
    """A host that answers its first questions and then never again."""

    open_stream = None

    def __init__(self, inner, silent):
        super().__init__(inner.host)
        self.target, self.shell = inner.target, inner.shell
        self._inner, self._silent = inner, silent

    def begin(self, type_, /, **fields):
        return Future() if type_ in self._silent else self._inner.begin(type_, **fields)


@pytest.mark.parametrize(
    "silent", [pytest.param("facts", marks=pytest.mark.full), "listen", pytest.param("reach", marks=pytest.mark.full)]
)
def test_the_look_ends_in_time_whatever_is_not_answered(three_hosts, silent):
    options = SshOptions(**three_hosts.options())
    with connect_temporarily(ssh.parse_hosts(options), options, 15) as (connections, _):
        asked = [Late(one, (silent,)) if one.host == "node-b" else one for one in connections]
        begin = time.monotonic()
        found = checkup.check_hosts(asked, (), options, seconds=8)
        assert time.monotonic() - begin < 20
    assert [(row.node, row.what) for row in found.errors] == [("node-b", "Reachable")]
    assert set(found.facts) == {"node-a", "node-c"}

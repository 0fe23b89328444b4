import itertools
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import AgentConnection, Host
from distdl_jupyter.clusters.agents.checkup import check_network
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.node import facts as node_facts


def address(name, address, prefix=24, speed=0, up=True, loopback=False, virtual=False):
    return {"name": name, "address": address, "prefix": prefix, "up": up, "loopback": loopback, "speed": speed,
            "virtual": virtual}  # fmt: skip


LO = address("lo", "127.0.0.1", 8, loopback=True)


def offered(wanted="", **hosts):
    return {host: checkup.list_endpoints(host, found, wanted) for host, found in hosts.items()}


def reaching(offer, works):
    """Return what connecting found: ``works(source, endpoint)`` says whether, for all pairs."""
    pairs = itertools.permutations(offer, 2)
    return {
        (source, endpoint.address): "" if works(source, endpoint) else "timed out"
        for source, target in pairs
        for endpoint in offer[target]
    }


def everything(_source, _endpoint):
    return True


def test_the_loopback_a_link_that_is_down_and_an_address_nobody_gave_out_are_no_seats():
    found = checkup.list_endpoints("a", [LO, address("eth1", "10.0.0.1", up=False), address("eth2", "169.254.3.4", 16)])
    assert found == []


def test_the_network_that_all_share_is_found_under_each_hosts_own_name():
    offer = offered(a=[LO, address("net0", "10.0.0.1")], b=[address("net1", "10.0.0.2"), LO])
    common = checkup.select_network(offer, reaching(offer, everything))
    assert common.network == "10.0.0.0/24"
    assert [(endpoint.interface, endpoint.address) for endpoint in common.endpoints] == [
        ("net0", "10.0.0.1"),
        ("net1", "10.0.0.2"),
    ]
    assert common.get_endpoint("b").interface == "net1"
    assert common.interface == ""


def test_two_networks_that_only_look_alike_do_not_win():
    """Each host's eth0 says 192.168.0.0/24 and is the fastest, but they are not connected."""
    offer = offered(
        a=[address("eth0", "192.168.0.1", speed=100_000), address("net0", "10.0.0.1", speed=1000)],
        b=[address("eth0", "192.168.0.2", speed=100_000), address("net1", "10.0.0.2", speed=1000)],
    )
    reached = reaching(offer, lambda _source, endpoint: endpoint.interface != "eth0")
    assert checkup.select_network(offer, reached).network == "10.0.0.0/24"


def test_the_same_address_on_both_is_no_network_even_if_something_answers():
    offer = offered(a=[address("docker0", "172.17.0.1", 16)], b=[address("docker0", "172.17.0.1", 16)])
    reached = reaching(offer, everything)
    assert checkup.select_network(offer, reached) is None


def test_the_fastest_of_two_that_work_is_taken_by_its_slowest_host():
    offer = offered(
        a=[address("eno1", "10.0.0.1", speed=1000), address("ib0", "10.1.0.1", speed=100_000)],
        b=[address("eno1", "10.0.0.2", speed=1000), address("ib0", "10.1.0.2", speed=40_000)],
    )
    assert checkup.select_network(offer, reaching(offer, everything)).network == "10.1.0.0/24"
    slow = offered(
        a=[address("eno1", "10.0.0.1", speed=1000), address("x", "10.1.0.1", speed=100_000)],
        b=[address("eno1", "10.0.0.2", speed=1000), address("x", "10.1.0.2", speed=10)],
    )
    assert checkup.select_network(slow, reaching(slow, everything)).network == "10.0.0.0/24"


def test_a_private_network_comes_before_a_public_one_of_the_same_speed():
    offer = offered(
        a=[address("eth0", "8.8.8.1"), address("eth1", "10.0.0.1")],
        b=[address("eth0", "8.8.8.2"), address("eth1", "10.0.0.2")],
    )
    assert checkup.select_network(offer, reaching(offer, everything)).network == "10.0.0.0/24"


def test_a_bridge_of_containers_is_taken_only_when_there_is_nothing_else():
    bridge = {"a": address("docker0", "172.17.0.1", 16, 10_000, virtual=True),
              "b": address("docker0", "172.17.0.2", 16, 10_000, virtual=True)}  # fmt: skip
    both = offered(a=[bridge["a"], address("eth0", "10.0.0.1")], b=[bridge["b"], address("eth0", "10.0.0.2")])
    assert checkup.select_network(both, reaching(both, everything)).network == "10.0.0.0/24"
    only = offered(a=[bridge["a"]], b=[bridge["b"]])
    assert checkup.select_network(only, reaching(only, everything)).network == "172.17.0.0/16"


def test_hosts_in_different_subnets_meet_where_all_others_reach_them():
    offer = offered(
        a=[address("eth0", "192.168.7.1", speed=10_000), address("eth1", "10.1.0.1")],
        b=[address("eth0", "192.168.8.1", speed=10_000), address("eth1", "10.2.0.1")],
        c=[address("eth1", "10.2.0.2")],
    )
    common = checkup.select_network(
        offer, reaching(offer, lambda _source, endpoint: endpoint.address.startswith("10."))
    )
    assert common.network == "10.1.0.0/24,10.2.0.0/24"
    assert [endpoint.address for endpoint in common.endpoints] == ["10.1.0.1", "10.2.0.1", "10.2.0.2"]


def test_what_was_not_tried_does_not_count_as_reached():
    offer = offered(a=[address("eth0", "10.0.0.1")], b=[address("eth0", "10.0.0.2")])
    assert checkup.select_network(offer, {("a", "10.0.0.2"): ""}) is None


@pytest.mark.parametrize("wanted", ["10.0.0.0/24", "10.0.0.7/24", "10.0.0.0/8", "eth1"])
def test_a_network_that_the_user_names_is_the_only_one(wanted):
    offer = offered(
        wanted,
        a=[address("eth0", "192.168.0.1", speed=10_000), address("eth1", "10.0.0.1")],
        b=[address("eth0", "192.168.0.2", speed=10_000), address("eth1", "10.0.0.2")],
    )
    assert checkup.select_network(offer, reaching(offer, everything)).network == "10.0.0.0/24"


@pytest.mark.parametrize("wanted", ["10.0.0.0/33", "ten/8", "fe80::/10"])
def test_what_is_no_network_is_refused_with_the_form_it_takes(wanted):
    with pytest.raises(InvalidSpec, match=r"10\.0\.0\.0/24") as caught:
        offered(wanted, a=[address("eth0", "10.0.0.1")])
    assert caught.value.field == "network"


def test_one_host_alone_meets_on_its_loopback():
    common = checkup.make_loopback_network({"a": [address("eth0", "10.0.0.1"), LO]})
    assert (common.interface, common.get_endpoint("a").address) == ("lo", "127.0.0.1")


class Agent(AgentConnection):
    """An agent that reaches every other one."""

    open_stream, shell = None, ""

    def __init__(self, name, machine):
        super().__init__(name)
        self.target, self._machine = Host(name, name), machine

    def begin(self, type_, /, **fields):
        answer = Future()
        facts = {**node_facts.gather(), "host": self._machine, "interfaces": [address("eth0", self._machine), LO]}
        replies = {"facts": {**facts, "received_at": time.time()}, "listen": {"port": 5}}
        reached = [[target, port, ""] for target, port in fields.get("targets", ())]
        answer.set_result(replies.get(type_, {"reached": reached}))
        return answer


@pytest.mark.parametrize(
    ("machines", "network"),
    [(["10.0.0.1", "10.0.0.1", "10.0.0.2"], "10.0.0.0/24"), (["10.0.0.1", "10.0.0.1"], "127.0.0.0/8")],
)
def test_several_agents_on_one_machine_share_its_address(machines, network):
    agents = [Agent(f"agent-{number}", machine) for number, machine in enumerate(machines)]
    options = SimpleNamespace(network="", oversubscribe=False)
    result = checkup.check_hosts(agents, [], options, can_share_host=True)
    assert (result.network.network, len(result.network.endpoints)) == (network, len(machines))
    for agent, machine in zip(agents, machines, strict=True):
        assert result.network.get_endpoint(agent.host).address in (machine, "127.0.0.1")


# what is said of it --------------------------------------------------------------------------


def rows(offer, works, wanted=""):
    reached = reaching(offer, works)
    return check_network(offer, reached, checkup.select_network(offer, reached), wanted)


THREE = {"a": [address("net0", "10.0.0.1")], "b": [address("net1", "10.0.0.2")], "c": [address("net2", "10.0.0.3")]}


def test_each_hosts_interface_is_named_and_that_all_are_reached():
    found = rows(offered(**THREE), everything)
    assert [(row.node, row.message) for row in found] == [
        ("a", "10.0.0.0/24 on net0"),
        ("b", "10.0.0.0/24 on net1"),
        ("c", "10.0.0.0/24 on net2"),
        ("", "all hosts reach each other"),
    ]
    assert {row.level for row in found} == {"ok"}


def test_a_firewall_names_both_ends_and_the_direction():
    found = rows(offered(**THREE), lambda source, endpoint: (source, endpoint.host) != ("a", "b"))
    (red,) = [row for row in found if row.level == "error"]
    assert (red.node, red.what, red.message) == ("b", "Ports", "a does not reach b at 10.0.0.2: timed out")
    assert red.remedy.startswith("Allow TCP from a to 10.0.0.2")


def test_a_host_that_nobody_reaches_is_one_row():
    found = rows(offered(**THREE), lambda _source, endpoint: endpoint.host != "c")
    (red,) = [row for row in found if row.level == "error"]
    assert red.message == "a and b do not reach c at 10.0.0.3: timed out"


def test_another_machine_at_an_address_has_another_remedy():
    offer = offered(**THREE)
    reached = reaching(offer, everything) | {("a", "10.0.0.3"): "another machine or program answers"}
    (red,) = [row for row in check_network(offer, reached, None) if row.level == "error"]
    assert "an address of its own" in red.remedy


def test_hosts_without_a_common_network_say_what_they_do_not_reach():
    found = rows(offered(a=[address("x", "10.0.0.1")], b=[address("x", "10.1.0.1")]), lambda *_: False)
    assert [(row.node, row.level, row.message) for row in found] == [
        ("a", "error", "b does not reach a at 10.0.0.1: timed out"),
        ("b", "error", "a does not reach b at 10.1.0.1: timed out"),
    ]
    assert all(row.remedy for row in found)


def test_hosts_that_reach_each_other_on_different_networks_only_have_no_common_one():
    ways = {("a", "eth0"), ("b", "eth1"), ("c", "eth0")}
    offer = offered(**{host: [address("eth0", f"10.0.0.{at}"), address("eth1", f"10.1.0.{at}")]
                       for at, host in enumerate("abc", 1)})  # fmt: skip
    (red,) = rows(offer, lambda source, endpoint: (source, endpoint.interface) in ways)
    assert (red.node, red.what, red.level) == ("", "Network", "error")


def test_a_host_without_the_wanted_network_is_named_with_the_option():
    found = rows(
        offered("10.0.0.0/24", a=[address("x", "10.0.0.1")], b=[address("x", "10.1.0.1")]), everything, "10.0.0.0/24"
    )
    (red,) = found
    assert (red.node, red.message) == ("b", "has no address on 10.0.0.0/24, which the option 'network' names")

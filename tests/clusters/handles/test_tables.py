"""Clusters and the checks of their hosts as rows."""

from distdl_jupyter.clusters import handle
from distdl_jupyter.clusters.base import NodeCheck
from distdl_jupyter.clusters.handle import CheckTable

HOSTS = ("node-a", "node-b", "node-c")


def each(what, level, says, hosts=HOSTS, remedy=""):
    return [NodeCheck(host, what, level, says, remedy) for host in hosts]


TORCH = NodeCheck(
    "node-c", "torch", "error", "torch 2.5.1, but this machine has 2.13.0", "Install the same version: ssh node-c pip"
)
FOUND = [
    *each("Reachable", "ok", "answers"),
    *each("torch", "ok", "2.13.0", HOSTS[:2]),
    TORCH,
    *(NodeCheck(host, "Network", "ok", f"10.0.0.0/24 on net{at}") for at, host in enumerate(HOSTS, 1)),
    NodeCheck("", "Ports", "ok", "all hosts reach each other"),
    NodeCheck("node-b", "Clock", "warning", "63 s ahead", "Set it."),
]


def test_the_table_is_aligned_and_a_remedy_stands_whole_below_its_row():
    assert handle.format_checks(handle.merge_hosts(FOUND), 60).splitlines() == [
        "✓ all 3 hosts     Reachable  answers",
        "✗ node-c          torch      torch 2.5.1, but this machine",
        "                             has 2.13.0",
        "                             → Install the same version: ssh node-c pip",
        "✓ node-a, node-b  torch      2.13.0",
        "✓ node-a          Network    10.0.0.0/24 on net1",
        "✓ node-b          Network    10.0.0.0/24 on net2",
        "✓ node-c          Network    10.0.0.0/24 on net3",
        "✓                 Ports      all hosts reach each other",
        "! node-b          Clock      63 s ahead",
        "                             → Set it.",
        "",
        "1 error, 1 warning.",
    ]


def test_many_hosts_take_few_lines_as_long_as_all_is_well():
    hosts = [f"gpu{at:03}" for at in range(100)]
    found = [
        *each("Python", "ok", "3.11.7", hosts[:60]),
        *each("Python", "ok", "3.11.9", hosts[60:]),
        *each("Network", "ok", "10.0.0.0/24 on ib0", hosts),
        *each("Disk", "warning", "3 GB free", hosts[:5], "Make room."),
    ]
    rows = [(row.node, row.message) for row in handle.merge_hosts(found)]
    assert rows == [
        ("60 hosts", "3.11.7"),
        ("40 hosts", "3.11.9"),
        ("all 100 hosts", "10.0.0.0/24 on ib0"),
        ("gpu000, gpu001, gpu002, gpu003, gpu004", "3 GB free"),
    ]


def test_one_host_is_named_and_a_shared_error_counts_once():
    assert handle.merge_hosts(each("Python", "ok", "3.11.7", ["node-a"]))[0].node == "node-a"
    assert handle.summarize_checks(each("Network", "error", "none")) == "1 error."
    assert handle.summarize_checks(each("Network", "ok", "one")) == "No problems found."
    assert repr(CheckTable([])) == "Nothing was checked."

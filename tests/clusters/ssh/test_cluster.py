"""The cluster of SSH hosts: what it reports without a connection, what it refuses, and where it places ranks."""

import sys

import pytest

from distdl_jupyter.clusters.base import Context
from distdl_jupyter.clusters.ssh import SshCluster, SshOptions
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from tests.conftest import wait_for
from tests.hosts import needs_hosts


def asked(nodes=1, per_node=1, **more):
    return JobSpec(id="20260101-000000-asked", name="n", node_count=nodes, process_count_per_node=per_node,
                   compute_target="lab", cluster="ssh", python=sys.executable, **more)  # fmt: skip


def test_ranks_are_placed_on_the_hosts_in_their_order():
    placement = SshCluster().preview(asked(2, 2), SshOptions(hosts="me@gpu2,gpu1,gpu3"))
    assert [(place.host, place.local_rank) for place in placement.ranks] == [
        ("gpu2", 0), ("gpu2", 1), ("gpu1", 0), ("gpu1", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["preview", "place"])
def test_more_nodes_than_hosts_are_refused_with_the_remedy(how):
    options = SshOptions(hosts="gpu1,gpu2")
    context = Context(JobStore().prepare(create_id()))
    more = {"preview": (options,), "place": (1, options, context)}[how]
    with pytest.raises(InvalidSpec) as told:
        getattr(SshCluster(), how)(asked(3), *more)
    assert told.value.field == "node_count"
    assert str(told.value) == (
        "lab has 2 hosts, but the job needs 3 nodes. Set node_count to at most 2, or add hosts to the cluster."
    )


def test_without_hosts_it_cannot_be_used_and_says_how():
    assert "hosts=['gpu1', 'gpu2']" in SshCluster().unavailable(SshOptions())
    assert SshCluster().unavailable(SshOptions(hosts="gpu1")) == ""


def test_without_ssh_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "openssh-client" in SshCluster().unavailable(SshOptions(hosts="gpu1"))


def test_auto_means_the_fewest_slots():
    assert SshCluster().process_count_per_node(SshOptions(hosts="gpu1:8,gpu2:4"), use_gpu=None) == 4
    assert SshCluster().process_count_per_node(SshOptions(hosts="gpu1"), use_gpu=False) == 1


def test_a_job_without_a_handle_has_nothing_to_sweep():
    assert SshCluster().sweep("20260101-000000-asked", {}) == []


@needs_hosts
class TestOnHosts:
    def place(self, lab, spec, report=lambda *_: None, **options):
        cluster = SshCluster()
        chosen = lab.options(**options)
        folder = JobStore().publish(JobStore().prepare(create_id()))
        placement = cluster.place(spec, 2, SshOptions(**chosen), Context(folder, report=report))
        cluster._release_nodes()
        return placement

    def test_ranks_meet_on_the_network_that_the_hosts_share(self, hosts_of):
        lab, said = hosts_of(2), []
        placement = self.place(lab, asked(2, 2), lambda *words: said.append(words))
        assert placement.address == lab.address("node-a")
        assert [place.interface for place in placement.ranks] == ["net0", "net0", "net1", "net1"]
        assert placement.network == f"10.203.{lab._number}.0/24"
        assert len(set(placement.ports)) == 2
        assert ("stage", "connecting to 2 hosts") in said

    def test_one_host_keeps_to_itself_and_asks_none_that_it_does_not_need(self, hosts_of):
        lab = hosts_of(2)
        lab.cut("node-b")
        placement = self.place(lab, asked(1, 2))
        assert (placement.address, placement.interface) == ("127.0.0.1", "lo")

    def test_who_gives_up_while_hosts_are_reached_leaves_no_agent(self, hosts_of):
        lab = hosts_of(2, own_processes=True)
        lab.cut("node-b")

        def give_up(_phase, detail):
            if detail.startswith("connected to 1 "):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.place(lab, asked(2), give_up)
        wait_for(lambda: not lab.pids("node-a"), 30, "the end of the agent")

    def test_a_working_directory_that_only_some_hosts_see_is_refused(self, hosts_of, tmp_path):
        here = tmp_path / "away" / "notebooks"
        here.mkdir(parents=True)
        lab = hosts_of(2, private={"node-b": [str(here.parent)]})
        with pytest.raises(LaunchFailed) as told:
            self.place(lab, asked(2, working_directory=str(here)))
        assert f"node-b: The host sees the job's folder, but not the working directory {here}." in told.value.message
        assert "'shared' to False" in told.value.hint

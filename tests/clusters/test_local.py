"""The local cluster holds the contract of all clusters; ports stay reserved; it starts no more than it can run."""

import os
import socket
import sys

import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters import local
from distdl_jupyter.clusters.agents.checkup import Checkup
from distdl_jupyter.clusters.agents.cluster import build_rank_slots
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.plan import Plan, Service
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.node import ports, processes
from distdl_jupyter.node.devices import cores
from distdl_jupyter.testing import ClusterContract
from distdl_jupyter.testing.cluster import StartCanceled


class TestLocal(ClusterContract):
    name = "local"
    node_count = 2


def test_without_a_free_port_a_job_is_refused(monkeypatch):
    monkeypatch.setattr(ports.random, "sample", lambda _range, _count: [])
    with pytest.raises(LaunchFailed, match="No free TCP port"):
        LocalCluster().place(JobSpec(id="i", name="n"), 1, None, Context(JobStore().prepare(create_id())))


def test_all_runs_of_a_scaling_study_have_the_cores_of_its_largest_run_per_process(monkeypatch):
    monkeypatch.setattr(local, "cores", lambda: 8)
    plan = {"processes": [1, 2, 4], "nodes": [1, 1, 2]}
    group = Group(kind="scale", id="s", name="digits", size=3, plan=plan)
    options = registry.check_options("clusters", "local", {})
    here, there = [], []
    for count, nodes in zip(plan["processes"], plan["nodes"], strict=True):
        spec = JobSpec(id="i", name="n", group=group, node_count=nodes, process_count_per_node=count // nodes)
        here.append(registry.get("clusters", "local").preview(spec, options).cores_per_rank)
        found = Checkup((), None, {"a": {"cores": 8}, "b": {"cores": 8}})
        there += [place.cores for place in build_rank_slots(spec, ["a", "b"], found)]
    assert here == [2, 2, 2]
    assert set(there) == {4}
    assert registry.get("clusters", "local").preview(JobSpec(id="i", name="n"), options).cores_per_rank == 8


@pytest.mark.parametrize(("nodes", "hosts"), [(1, [socket.gethostname()] * 2), (2, ["node-0", "node-1"])])
def test_nodes_are_emulated_where_there_are_several(nodes, hosts):
    spec = JobSpec(id="", name="", node_count=nodes, process_count_per_node=2 // nodes)
    placement = registry.get("clusters", "local").preview(spec, registry.check_options("clusters", "local", {}))
    assert ([place.host for place in placement.ranks], placement.emulated) == (hosts, nodes > 1)


@pytest.mark.fault("many", "more ranks than the machine allows are rejected with a fix; nothing is started")
def test_submit_of_too_many_ranks_starts_nothing():
    many = 8 * max(8, cores()) + 1
    with pytest.raises(InvalidSpec, match=r"set oversubscribe=True\.$"):
        submit(print, process_count_per_node=many)
    assert not list(JobStore().jobs.glob("*"))


@pytest.mark.fault("stubborn", "a start of many ranks is canceled within a few ranks, and leaves none")
def test_a_start_is_stopped_between_some_ranks_and_leaves_none():
    cluster, told = registry.get("clusters", "local"), []

    def report(phase, detail):
        told.append((phase, detail))
        raise StartCanceled

    folder = JobStore().publish(JobStore().prepare(create_id()))
    spec = JobSpec(id=folder.id, name="n", process_count_per_node=60, python=sys.executable)
    context = Context(folder, {"DISTDL_JOB_ID": folder.id, "DISTDL_JOB_DIR": str(folder.path)}, dict(os.environ))
    placement = cluster.place(spec, 0, None, context)
    context.report = report
    with pytest.raises(StartCanceled):
        cluster.start(spec, placement, Plan(({},) * 60), context)
    assert told == [("start", "8 of 60 processes")]
    assert processes.find_job_pids({processes.MARK: folder.id}) == set()


def test_a_start_that_waits_for_a_service_is_stopped():
    cluster = registry.get("clusters", "local")
    folder = JobStore().publish(JobStore().prepare(create_id()))
    spec = JobSpec(id=folder.id, name="n", python=sys.executable)
    context = Context(folder, {"DISTDL_JOB_ID": folder.id}, dict(os.environ))
    placement = cluster.place(spec, 0, None, context)

    def report(_phase, detail):
        assert detail == "waiting for the meeting point"
        raise StartCanceled

    context.report = report
    waits = Service("the meeting point", ("-c", "import time; time.sleep(600)"), "ready")
    with pytest.raises(StartCanceled):
        cluster.start(spec, placement, Plan(({},), services=(waits,)), context)
    assert processes.find_job_pids({processes.MARK: folder.id}) == set()

"""Elastic jobs without processes: who gets which rank, which hosts there are, what is refused, who is let in."""

import base64
import http.client
import json
import os
import pickle
import socket
import stat
import sys

import cloudpickle
import pytest
from horovod.runner.common.util.hosts import SlotInfo

from distdl_jupyter import registry
from distdl_jupyter.backends.elastic.messages import ProcessExit, Supervisor
from distdl_jupyter.backends.elastic.rendezvous import ElasticRendezvous, listener
from distdl_jupyter.backends.elastic.slots import Slot, assign, can_meet, has_state, offer
from distdl_jupyter.clusters.agents.elastic_run import current_hosts, parse_hosts
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.spec import JobSpec


def slots_of(*hosts, alive=True):
    """Return slots of the hosts, each offered and with a process that waits."""
    return [
        Slot(number, host, hosts[:number].count(host), offered=True, alive=alive, ready=alive)
        for number, host in enumerate(hosts)
    ]


def test_the_first_ranks_are_those_of_the_slots():
    found = assign(slots_of("a", "a", "b"))
    assert found[0] == SlotInfo("a", rank=0, size=3, local_rank=0, local_size=2, cross_rank=0, cross_size=2)
    assert found[1] == SlotInfo("a", rank=1, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    assert found[2] == SlotInfo("b", rank=2, size=3, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    assert found[2].to_response_string() == "2,3,0,1,1,2"


def test_those_that_have_the_state_come_first_in_their_old_order():
    some = slots_of("a", "a", "b")
    some[1].rank, some[2].rank = 2, 1  # the process of slot 0 is new
    found = assign(some)
    assert [found[number].rank for number in range(3)] == [2, 1, 0]
    assert found[0].local_rank == 0, "a slot keeps its local rank, and with it its GPU"
    assert (found[2].cross_rank, found[0].cross_rank) == (0, 1)


def test_all_meet_or_nobody():
    some = slots_of("a", "a", "b")
    assert can_meet(some, 3)
    some[2].ready = False
    assert not can_meet(some, 2)
    some[2].clear()
    assert can_meet(some, 2)
    assert not can_meet(some, 3)


def test_a_process_on_a_host_that_went_is_waited_for_and_not_counted():
    some = slots_of("a", "b")
    changed = offer(some, {"a": 4})
    assert [slot.number for slot in changed] == [1]
    assert can_meet(some, 1)
    assert not can_meet(some, 2)
    some[1].ready = False
    assert not can_meet(some, 1), "it is in the middle of a step with the others"


def test_the_state_lives_as_long_as_one_that_has_met():
    some = slots_of("a", "a")
    assert not has_state(some)
    some[1].rank = 0
    assert has_state(some)
    some[1].clear()
    assert not has_state(some)


def test_hosts_are_read_as_horovodrun_reads_them(tmp_path):
    capacity = {"node-0": 2, "node-1": 2}
    assert current_hosts("", capacity) == capacity
    assert parse_hosts("# a remark\n\nnode-0:1\nelsewhere:8\nnode-1\n", capacity) == {"node-0": 1, "node-1": 2}
    assert parse_hosts("node-0:9\n", capacity) == {"node-0": 2}
    file = tmp_path / "hosts"
    file.write_text("node-1:2\n")
    assert current_hosts(str(file), capacity) == {"node-1": 2}
    with pytest.raises(ValueError, match="'node-0:two' does not have the form HOST:SLOTS"):
        parse_hosts("node-0:two", capacity)


def test_a_discovery_script_is_run(tmp_path):
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho node-0:1\nexit $CODE\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    os.environ["CODE"] = "0"
    try:
        assert current_hosts(str(script), {"node-0": 1}) == {"node-0": 1}
        os.environ["CODE"] = "4"
        with pytest.raises(ValueError, match="it ended with code 4"):
            current_hosts(str(script), {"node-0": 1})
    finally:
        del os.environ["CODE"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def rendezvous():
    found = ElasticRendezvous("127.0.0.1", free_port(), lambda key: f"asked by {key}".encode())
    found.wait_seconds = 0.0
    found.open()
    yield found
    found.close()


def request(rendezvous, method, path, body=None):
    """Return status and body of a request to the server's own address."""
    where, _ = rendezvous.variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].split("/")
    connection = http.client.HTTPConnection(where, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


def inside(rendezvous, path):
    address, secret = rendezvous.variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].split("/")
    return f"/{secret}:{address.split(':')[1]}/{path}"


def test_horovods_requests_are_answered_with_the_secret(rendezvous):
    assert request(rendezvous, "PUT", inside(rendezvous, "global/0"), b"some bytes")[0] == 200
    assert request(rendezvous, "GET", inside(rendezvous, "global/0")) == (200, b"some bytes")
    assert request(rendezvous, "GET", inside(rendezvous, "rank_and_size/node-0:1")) == (200, b"asked by node-0:1")
    assert request(rendezvous, "GET", inside(rendezvous, "global/1"))[0] == 404
    assert request(rendezvous, "DELETE", inside(rendezvous, "global/0"))[0] == 200
    rendezvous.clear()
    assert request(rendezvous, "GET", inside(rendezvous, "global/0"))[0] == 404


@pytest.mark.fault("entry", "requests without the job's secret get no response, and no file is shown")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/global/0", "/rank_and_size/node-0:0", "/../../etc/passwd", "/%00", "/x:1/a/b"])
def test_others_are_turned_away(rendezvous, method, path):
    status, body = request(rendezvous, method, path, b"x" if method in ("PUT", "POST") else None)
    assert status in (403, 404, 501)
    assert b"root:" not in body
    assert request(rendezvous, "GET", inside(rendezvous, "global/0"))[0] == 404


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.fault("entry", "reports of a process are read as data: nothing in them runs")
def test_a_pickle_that_would_run_something_is_no_listener(rendezvous, tmp_path):
    def told(value):
        return base64.b64encode(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    good = told(({"lo": [("127.0.0.1", 4711)]}, b"key"))
    assert listener(good) == ({"lo": [("127.0.0.1", 4711)]}, b"key")
    for bad in (told(Trap(str(tmp_path / "made"))), told([1]), told(({"lo": 1}, b"k")), told(({}, "text")), b"?", b""):
        assert listener(bad) is None
        assert request(rendezvous, "PUT", inside(rendezvous, "worker_addresses/a:0"), bad)[0] == 200
    assert not (tmp_path / "made").exists()
    assert not rendezvous.listeners
    assert request(rendezvous, "PUT", inside(rendezvous, "worker_addresses/a:0"), good)[0] == 200
    assert list(rendezvous.listeners) == ["a:0"]
    assert request(rendezvous, "GET", inside(rendezvous, "worker_addresses/a:0"))[0] == 404, "the key is told to nobody"


def test_what_the_driver_writes_is_one_line_each(tmp_path):
    read, write = os.pipe()
    supervisor = Supervisor(write, sys.stdin)
    supervisor.ended(0, ProcessExit(0))
    supervisor.replaced(1, 4711, ProcessExit(signal="KILL"))
    supervisor.left(2, 4712, "Its host went.")
    supervisor.note("info", "two\nlines", "code")
    said = [json.loads(line) for line in os.read(read, 65536).splitlines()]
    os.close(read)
    assert [one["type"] for one in said] == ["ended", "replaced", "left", "note"]
    assert (said[0]["code"], said[0]["signal"]) == (0, None)
    assert (said[1]["code"], said[1]["signal"], said[1]["pid"]) == (None, "KILL", 4711)


def plan(nodes=1, per_node=2, cluster="local", label="horovod-gloo", min_node_count=None, **given):
    backend, options = registry.backend(label, {"elastic": True, **given})
    spec = JobSpec(id="i", name="n", node_count=nodes, process_count_per_node=per_node, distributed_backend=label,
                   compute_target=cluster, min_node_count=min_node_count, max_restarts=1)  # fmt: skip
    places = tuple(
        RankSlot(rank, rank // per_node, f"node-{rank // per_node}", rank % per_node)
        for rank in range(spec.process_count)
    )
    return backend.plan(spec, Placement(places, "127.0.0.1", (20_001,), "lo"), options)


def test_an_elastic_plan_has_a_driver_and_no_fixed_world():
    made = plan(nodes=3, min_node_count=2)
    assert made.launcher.reports_exits
    assert made.launcher.argv[3:] == ("distdl_jupyter.backends.elastic", "127.0.0.1", "20001", "4", "600")
    assert not made.services
    for environment in made.environments:
        assert environment["HOROVOD_ELASTIC"] == "1"
        assert not {"HOROVOD_RANK", "HOROVOD_SIZE", "WORLD_SIZE", "RANK"} & set(environment)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"label": "horovod-mpi"}, "distributed_backend"),
        ({"cluster": "slurm"}, "elastic"),
        ({"min_process_count": 0}, "min_process_count"),
        ({"min_process_count": 3}, "min_process_count"),
        ({"elastic_timeout_seconds": 0}, "elastic_timeout_seconds"),
        ({"host_discovery": "/nowhere/at/all"}, "host_discovery"),
    ],
)
def test_what_an_elastic_job_cannot_be_is_refused_with_a_remedy(options, field):
    with pytest.raises(InvalidSpec) as caught:
        plan(**options)
    assert caught.value.field == field


def test_on_hosts_the_driver_starts_nothing_itself():
    made = plan(nodes=2, cluster="ssh", host_discovery=__file__)
    assert made.launcher.argv[3:] == ("distdl_jupyter.backends.elastic", "127.0.0.1", "20001", "4", "600")
    assert made.launcher.discovery == __file__

"""Rank 0 tells the others where they meet, over TCP, or why they do not."""

import json
import socket
import threading

import pytest

from distdl_jupyter.clusters.azureml.node.node_plan import Who, endpoints, who
from distdl_jupyter.clusters.azureml.node.rank import keep
from distdl_jupyter.clusters.azureml.node.rendezvous import Host, Rendezvous, RendezvousFailed, join

NONCE = "the-nonce"
RENDEZVOUS = Rendezvous("127.0.0.1", "127.0.0.0/8", (20_001, 20_002))


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def never():
    return False


def test_the_others_hear_it_although_they_came_before_rank_0(port):
    found = []
    others = [threading.Thread(target=lambda: found.append(join("127.0.0.1", port, NONCE, never))) for _ in range(3)]
    for other in others:
        other.start()
    Host(port, NONCE, 3).announce(RENDEZVOUS)
    for other in others:
        other.join(30)
    assert found == [RENDEZVOUS] * 3


def test_the_others_hear_why_there_is_none(port):
    host = Host(port, NONCE, 1)
    threading.Thread(target=host.refuse, args=("The service did not start.",)).start()
    with pytest.raises(RendezvousFailed, match="did not start"):
        join("127.0.0.1", port, NONCE, never)


def test_a_stranger_is_told_nothing(port):
    host = Host(port, NONCE, 1)
    host.announce(RENDEZVOUS)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.sendall(b"another\n")
        assert stranger.recv(100) == b""
    assert join("127.0.0.1", port, NONCE, never) == RENDEZVOUS


def test_the_wait_ends_when_somebody_stops_it_or_nobody_comes(port):
    with pytest.raises(RendezvousFailed, match="stopped"):
        join("127.0.0.1", port, NONCE, lambda: True)
    with pytest.raises(RendezvousFailed, match="did not start"):
        join("127.0.0.1", port, NONCE, never, timeout=0.3)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, Who(0, 1, None)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "RANK": "9"},
         Who(3, 4, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, Who(2, 4, 0)),
        ({"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})},
         Who(1, 2, None)),
        ({"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1"]},
                                   "task": {"type": "worker", "index": 0}})}, Who(1, 2, None)),
    ],
)  # fmt: skip
def test_a_process_knows_which_rank_it_is_however_it_was_started(environment, wanted):
    assert who(environment) == wanted


def test_outputs_are_copied_once_and_values_are_left_out(tmp_path):
    outputs, target = tmp_path / "outputs", tmp_path / "target"
    (outputs / "distdl/results").mkdir(parents=True)
    (outputs / "distdl/results/rank-0.pkl").write_text("value")
    (outputs / "deep").mkdir()
    (outputs / "deep/model.pt").write_text("weights")
    keep(outputs, target)
    copied = target / "deep/model.pt"
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["model.pt"]
    before = copied.stat().st_ino
    keep(outputs, target)
    assert copied.stat().st_ino == before
    (outputs / "deep/model.pt").write_text("better weights")
    keep(outputs, target)
    assert copied.read_text() == "better weights"


def test_tensorflows_own_variable_says_where_every_rank_listens():
    told = {
        "cluster": {"chief": ["10.0.0.4:2222"], "worker": ["10.0.0.5:2223"]},
        "task": {"type": "worker", "index": 0},
    }
    environment = {"TF_CONFIG": json.dumps(told)}
    assert who(environment) == Who(1, 2, None)
    assert endpoints(environment) == {
        "@rank-0-address@": "10.0.0.4", "@rank-0-port-0@": "2222", "@rank-1-address@": "10.0.0.5",
        "@rank-1-port-0@": "2223",
    }  # fmt: skip
    assert endpoints({}) == {}

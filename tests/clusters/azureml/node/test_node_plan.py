"""What only the node itself knows, put into the plan."""

import json
import os
import socket

import pytest

from distdl_jupyter.clusters.azureml.node import rendezvous
from distdl_jupyter.clusters.azureml.node.node_plan import NodePlan, Who
from distdl_jupyter.clusters.azureml.node.rendezvous import Rendezvous


def node_plan(tmp_path, **plan):
    given = {"job": "j", "ranks": 2, "per_node": 2, "ports": 1, "common": {}, "environments": [], "services": [],
             "distribution": "torch"}  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps({**given, **plan}))
    found = NodePlan(tmp_path, Who(0, 2, None))
    found.node = "node-x"
    return found


def test_words_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    here = node_plan(tmp_path)
    here.learn(Rendezvous("127.0.0.1", "127.0.0.0/8", (20_001, 20_002)))
    assert here.fill("@address@:@port-1@ @interface@ @network@ @cores@") == "127.0.0.1:20002 lo 127.0.0.0/8 4"


@pytest.mark.parametrize(
    ("plan", "given", "wanted"),
    [({"CUDA_VISIBLE_DEVICES": "0,1", "DISTDL_GPU": "1"}, "2,3", {"CUDA_VISIBLE_DEVICES": "2,3", "DISTDL_GPU": "3"}),
     ({"CUDA_VISIBLE_DEVICES": "0,1", "DISTDL_GPU": "0"}, "", {}), ({}, "2,3", {})],
)  # fmt: skip
def test_gpus_are_those_that_the_platform_gave(tmp_path, monkeypatch, plan, given, wanted):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    here = node_plan(tmp_path, environments=[plan])
    assert here.of_rank(0) == {**plan, "DISTDL_HOST": "node-x", **wanted}


def test_the_loopback_is_an_interface():
    assert rendezvous.interface("127.0.0.1") in {name for _, name in socket.if_nameindex()}
    assert rendezvous.network_of("127.0.0.1") == "127.0.0.0/8"

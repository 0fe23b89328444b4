"""TensorFlow and Ray over real hosts: each rank's ports are on its own host."""

import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source
from tests.frameworks import RAY, TENSORFLOW
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(600), pytest.mark.full]


def submit(lab, code, backend):
    options = {"node_count": 2, "process_count_per_node": 1, "distributed_backend": backend, "compute_target": "lab"}
    lab.job = submit_source(textwrap.dedent(code).strip(), options=options)
    return lab.job


def test_tensorflows_workers_meet(lab_of):
    lab = lab_of(2)
    results = submit(lab, TENSORFLOW, "tensorflow").wait(300).results()
    assert [one["total"] for one in results] == [3.0, 3.0]
    addresses = [where.rpartition(":")[0] for where in results[0]["workers"]]
    assert addresses == [lab.hosts.address(name) for name in lab.hosts.names]


def test_hosts_are_a_ray_cluster_and_nothing_of_it_stays(lab_of):
    lab = lab_of(2)
    results = submit(lab, RAY, "ray").wait(500).results()
    assert results == [{"squares": [0, 1, 4, 9], "nodes": 2}, None]
    lab.until_nothing_is_left()

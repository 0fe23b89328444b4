"""TensorFlow and Ray on Slurm, which names the nodes late: each rank finds ports on its own."""

import pytest

from tests.clusters.slurm.test_slurm import submit
from tests.frameworks import RAY, TENSORFLOW
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(600), pytest.mark.full, pytest.mark.usefixtures("nothing_stays")]


def test_tensorflows_workers_meet(slurm):
    results = submit(TENSORFLOW, 2, 1, "tensorflow").results(timeout=300)
    assert [one["total"] for one in results] == [3.0, 3.0]
    addresses = [where.rpartition(":")[0] for where in results[0]["workers"]]
    assert len(set(addresses)) == 2
    assert results[0]["workers"] == results[1]["workers"]


def test_nodes_are_a_ray_cluster(slurm):
    results = submit(RAY, 2, 1, "ray").results(timeout=500)
    assert results == [{"squares": [0, 1, 4, 9], "nodes": 2}, None]

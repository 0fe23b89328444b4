"""Training on several hosts: who the ranks are, what they say, what comes back."""

import os

import pytest

from tests.multihost.launching import BACKENDS, launch, said, trainer
from tests.multihost.training import machine

pytestmark = pytest.mark.timeout(300)

WHO = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


#: The shapes that ``make test`` tries.
FEW = {("horovod-gloo", 2, 1)}
SHAPES = [
    pytest.param(*one, marks=() if one in FEW else pytest.mark.full)
    for one in ((backend, *shape) for backend in BACKENDS for shape in ((2, 1), (2, 2), (3, 1), (3, 2)))
]


@pytest.mark.parametrize(("backend", "nodes", "per_node"), SHAPES)
def test_ranks_on_several_hosts_train_one_model(lab, backend, nodes, per_node):
    job = launch(trainer(backend), backend=backend, nodes=nodes, per_node=per_node)
    values = job.results(timeout=240)
    total = nodes * per_node
    for rank, value in enumerate(values):
        node, local = divmod(rank, per_node)
        assert [value[name] for name in WHO] == [rank, total, local, per_node, node, nodes]
        assert (value["host"], value["machine"]) == (lab.names[node],) * 2
        assert value["weights"] == pytest.approx(values[0]["weights"], abs=1e-6)
    metrics = job.metrics()
    assert sorted(metrics["rank"]) == sorted(list(range(total)) * 5)
    assert metrics.groupby("step")["loss"].nunique().max() == total, "each rank trains on data of its own"
    for rank in range(total):
        assert [line for line in said(job, rank) if "step" in line] == [f"rank {rank} step {n}" for n in range(5)]
    view = job.view()
    assert [rank.host for rank in view.ranks] == [lab.names[rank // per_node] for rank in range(total)]
    assert not [name for name in lab.names if lab.running(name, "distdl_jupyter")]


def test_a_host_with_a_home_of_its_own_needs_no_installation_of_this_package(lab_of, distdl_home):
    """The agent, the worker and the services there are those of this machine, whatever the host has."""
    import distdl_jupyter

    distdl_home.mkdir(mode=0o700)
    package = os.path.dirname(distdl_jupyter.__file__)
    lab_of(2, private={name: [distdl_home, package] for name in ("node-a", "node-b")})
    assert launch(machine).results(timeout=240) == ["node-a", "node-b"]

"""Jobs on a real Slurm of two nodes, each with a name and an address of its own."""

import json
import textwrap

import pytest

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.submission import submit_source
from distdl_jupyter.testing import ClusterContract
from tests.conftest import wait_for
from tests.slurm import needs_slurm, slurm, slurm_of, two_nodes  # noqa: F401 - fixtures

pytestmark = [needs_slurm, pytest.mark.timeout(600)]

HOROVOD = """
    import os, socket
    import horovod.torch as hvd
    import torch
    from distdl_jupyter import log
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss)
    print("host", socket.gethostname())
    {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "cross_rank": hvd.cross_rank(),
     "host": socket.gethostname(), "weights": model.weight.flatten().tolist(),
     "iface": os.environ["HOROVOD_GLOO_IFACE"]}
"""
TORCH = """
    import os, socket
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1) * dist.get_rank()
    dist.all_reduce(total)
    {"rank": dist.get_rank(), "size": dist.get_world_size(), "total": total.item(), "host": socket.gethostname(),
     "iface": os.environ["GLOO_SOCKET_IFNAME"]}
"""
COUNT = """
    import os, time
    for number in range({lines}):
        print("line", number, flush=True)
        time.sleep({pause})
    os.environ["RANK"]
"""


def submit(code, nodes=1, per_node=1, backend="plain", **options):
    wanted = {"node_count": nodes, "process_count_per_node": per_node, "distributed_backend": backend,
              "compute_target": "slurm", **options}  # fmt: skip
    return submit_source(textwrap.dedent(code).strip(), options=wanted)


def lines(job, rank=0):
    """Return what a rank printed, line by line."""
    found = []
    for event in events(job):
        if event["type"] == "log" and event["rank"] == rank and event["stream"] == "out":
            found += event["text"].splitlines()
    return found


def events(job):
    with JobStore().find(job.id).events.open() as file:
        return [json.loads(line) for line in file]


def notes(job, code):
    return [event["text"] for event in events(job) if event["type"] == "note" and event["code"] == code]


def detail(job):
    phases = job.view().phases
    return phases[-1].detail if phases else ""


def slurm_jobs(cluster):
    """Return {job number: state} of what is in the queue or runs."""
    said = cluster.run("squeue", "-h", "-o", "%i %T").stdout.split()
    return dict(zip(said[::2], said[1::2], strict=True))


@pytest.fixture(autouse=True)
def nothing_stays(slurm):  # noqa: F811 - the fixture
    yield
    slurm.run("scancel", "--user=root", check=False)
    wait_for(lambda: not slurm_jobs(slurm), what="an empty queue")


class TestContract(ClusterContract):
    name = "slurm"


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_horovod_trains(slurm, nodes, per_node):  # noqa: F811
    values = submit(HOROVOD, nodes, per_node, "horovod-gloo").results(timeout=240)
    assert [value["rank"] for value in values] == list(range(nodes * per_node))
    assert {value["size"] for value in values} == {nodes * per_node}
    for rank, value in enumerate(values):
        assert value["local_rank"] == rank % per_node
        assert value["cross_rank"] == rank // per_node
        assert value["host"] == slurm.names[rank // per_node]
        assert value["weights"] == values[0]["weights"]
        name = slurm.hosts.interface(value["host"]) if nodes > 1 else "lo"
        assert value["iface"] == name


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (2, 1), (2, 2)])
def test_torch_meets(slurm, nodes, per_node):  # noqa: F811
    values = submit(TORCH, nodes, per_node, "torch").results(timeout=240)
    assert [value["total"] for value in values] == [sum(range(nodes * per_node))] * (nodes * per_node)
    assert [value["host"] for value in values] == [slurm.names[rank // per_node] for rank in range(nodes * per_node)]

"""The nodes of a job are a Ray cluster while the driver runs, and nothing of it stays."""

import textwrap
import zlib
from pathlib import Path

import grpc
import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.registry import load_backend
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes
from tests.conftest import wait_for
from tests.frameworks import RAY

SLEEPS = """
    import os
    import time
    import ray

    @ray.remote(num_cpus=1)
    def sleep():
        time.sleep(600)

    pending = sleep.remote()
    print("address:", os.environ["RAY_ADDRESS"])
    ray.get(pending)
"""


def plan(nodes, per_node=1, gpu=None, emulated=False):
    made, options = load_backend("ray", {})
    spec = JobSpec(id="i", name="n", node_count=nodes, process_count_per_node=per_node, distributed_backend="ray")
    own = {"ports": (1, 2, 3, 4), "gpu": gpu}
    slots = tuple(RankSlot(rank, rank, f"n{rank}", 0, address=f"10.0.0.{rank}", **own) for rank in range(nodes))
    return made.plan(spec, Placement(slots, "10.0.0.0", (5, 6, 7), "eth0", emulated=emulated), options)


def submit(code, **options):
    return submit_source(textwrap.dedent(code).strip(), options={"distributed_backend": "ray", **options})


def left_of(job):
    return processes.find_job_pids({processes.MARK: job.id})


def output(job):
    return [line.text for line in job.logs(rank=0)]


def folders(job):
    return list(Path("/tmp").glob(f"distdl-{zlib.crc32(job.id.encode()):08x}-*"))


def refusal(address, *metadata):
    """Ask Ray's head for its nodes and return the status code."""
    with grpc.insecure_channel(address) as connection:
        try:
            connection.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")(b"", timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_one_process_runs_on_a_node_and_ray_shares_out_what_the_node_has():
    made = plan(2, gpu=0)
    assert all("CUDA_VISIBLE_DEVICES" not in environment for environment in made.environments)
    assert {environment["RAY_USAGE_STATS_ENABLED"] for environment in made.environments} == {"0"}
    with pytest.raises(InvalidSpec) as refused:
        plan(1, per_node=2)
    assert refused.value.field == "process_count_per_node"
    assert "@ray.remote" in refused.value.hint


def test_emulated_nodes_keep_their_share_of_the_gpus():
    assert plan(2, gpu=0, emulated=True).environments[0]["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.timeout(600)
@pytest.mark.readme("ray")
def test_two_emulated_nodes_are_one_cluster_and_lines_of_tasks_are_in_the_drivers_log():
    job = submit(RAY, node_count=2).wait(400)
    assert job.results() == [{"squares": [0, 1, 4, 9], "nodes": 2}, None]
    lines = output(job)
    assert [line for line in lines if "exporter agent" in line] == [], "Ray's own metrics are off"
    assert sorted(line[-1] for line in lines if "square of" in line) == ["0", "1", "2", "3"], "each once"
    assert left_of(job) == set()
    assert folders(job) == []


@pytest.mark.timeout(600)
@pytest.mark.full
def test_a_stranger_is_refused_and_canceling_leaves_nothing_of_ray():
    job = submit(SLEEPS)
    wait_for(lambda: job.state.ended or any(line.startswith("address:") for line in output(job)), 240, "the driver")
    (address,) = (line.split()[1] for line in output(job) if line.startswith("address:"))
    assert len(folders(job)) == 2, "that of the agent and that of Ray"
    for metadata in ((), (("authorization", f"Bearer {'a' * 64}"),)):
        assert refusal(address, *metadata) is grpc.StatusCode.UNAUTHENTICATED
    job.cancel()
    assert job.wait(120).state is State.CANCELED
    assert left_of(job) == set()
    assert folders(job) == []
    assert "left-behind" not in JobStore().find(job.id).log.read_text(), "the rank has ended Ray itself"


def test_a_ray_that_requires_no_token_is_refused(monkeypatch):
    made, options = load_backend("ray", {})
    monkeypatch.setattr("distdl_jupyter.backends.ray.metadata.version", lambda _name: "2.51.1")
    assert "accepts connections from anyone on the network" in made.unavailable(options)
    monkeypatch.setattr("distdl_jupyter.backends.ray.metadata.version", lambda _name: "2.52.0")
    assert made.unavailable(options) == ""

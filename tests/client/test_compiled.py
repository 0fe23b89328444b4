"""torch.compile in jobs: a rank that compiles is not stalled, and a second job compiles nothing."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.cli.show import describe_job
from distdl_jupyter.node.data_cache import get_default_base
from distdl_jupyter.views.card import get_rank_status
from distdl_jupyter.views.job_table import make_job_row
from distdl_jupyter.worker.hooks import frameworks
from tests.conftest import wait_for
from tests.written import all_written

pytestmark = pytest.mark.timeout(300)


def compile_for(seconds):
    """Train a step whose compilation takes a while on rank 1, and return what the compiled code computes."""
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def slow(graph, _inputs):
        time.sleep(seconds if dist.get_rank() == 1 else 0)
        return graph.forward

    dist.barrier()
    double = torch.compile(lambda x: 2 * x, backend=slow)
    total = double(torch.ones(1))
    dist.all_reduce(total)
    return total.item()


def test_a_rank_that_compiles_says_so_and_is_not_stalled(monkeypatch):
    monkeypatch.setenv("DISTDL_STALL_SECONDS", "5")  # longer than the import of the compiler
    job = submit(compile_for, (15,), process_count_per_node=2, distributed_backend="torch")
    wait_for(lambda: [get_rank_status(rank) for rank in job.view().ranks] == ["ready", "compiling"], 60)
    view = job.view()
    assert make_job_row(view, job.spec, view.created).message == "torch.compile on rank 1"
    assert any("compiling" in line for line in describe_job(job))
    assert job.results(timeout=100) == [4.0, 4.0]
    assert not [event for event in all_written(job.folder) if event["type"] == "stall"]
    assert not any(rank.compiling for rank in job.view().ranks)


def train_compiled():
    """Train a compiled model; return how many graphs came from inductor's caches and how many were compiled."""
    import torch
    from torch._dynamo.utils import counters

    net = torch.compile(torch.nn.Linear(3, 5))
    net(torch.ones(2, 3)).sum().backward()
    found = counters["inductor"] + counters["aot_autograd"]
    return found["autograd_cache_hit"], found["autograd_cache_miss"] + found["fxgraph_cache_miss"]


@pytest.mark.full
def test_a_second_job_compiles_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = []
    for _ in range(2):
        job = submit(train_compiled, process_count_per_node=1, distributed_backend="torch")
        found.append(job.result(timeout=200))
    (hits, misses), second = found
    assert hits == 0
    assert misses > 0
    assert second == (1, 0)
    assert list((get_default_base() / frameworks.COMPILED_FOLDER).iterdir())

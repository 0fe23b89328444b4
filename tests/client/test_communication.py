"""A note names ranks that train without communicating; ranks that communicate rarely get none."""

import contextlib
import importlib.util

import pytest

from distdl_jupyter import submit
from tests.written import notes

pytestmark = pytest.mark.timeout(200)


def train(way, steps, seconds=0.0):
    """Train on each rank; ``way`` says how the ranks communicate, if they do."""
    import os
    import time

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if way == "alone":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    elif way in ("unused", "ddp", "no_sync", "local"):
        dist.init_process_group("gloo")
    net = torch.nn.Linear(4, 1)
    if way in ("alone", "ddp", "no_sync"):
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if way == "horovod":
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    for step in range(steps):
        with net.no_sync() if way == "no_sync" else contextlib.nullcontext():
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if way == "local" and step % 40 == 39:
            for one in net.parameters():
                dist.all_reduce(one.data)
        time.sleep(seconds)
    return os.environ["DISTDL_RANK"]


def run(way, steps, **options):
    job = submit(train, (way, steps), **{"process_count_per_node": 2, "distributed_backend": "torch", **options})
    job.results(timeout=120)
    return notes(job, "no-communication")


@pytest.mark.parametrize(
    ("way", "steps", "missing"),
    [("none", 20, "process group"), ("alone", 20, "process group"), ("unused", 100, "collective operation")],
)
def test_ranks_that_never_communicate_get_one_note(way, steps, missing):
    (text,) = run(way, steps)
    assert f"{steps} optimizer steps" in text
    assert missing in text
    assert run(way, steps - 1) == []


@pytest.mark.parametrize("way", ["ddp", "no_sync", "local"])
def test_ranks_that_communicate_rarely_or_only_at_the_start_get_none(way):
    assert run(way, 120) == []


def test_one_process_gets_none():
    assert run("none", 25, process_count_per_node=1) == []


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="not installed: horovod")
def test_horovod_is_noticed_only_where_it_is_not_used():
    (text,) = run("none", 20, distributed_backend="horovod-gloo")
    assert "hvd.init()" in text
    assert run("horovod", 120, distributed_backend="horovod-gloo") == []

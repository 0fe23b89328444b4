"""A job with a known slow operator and a rank that comes late to each all-reduce, and what its profile must say."""

import gzip
import json

from tests.conftest import wait_for


def train(backend, pause=0.4):
    """Both ranks multiply large matrices in each step; rank 1 sleeps before its backward pass: rank 0 waits for it."""
    import time

    import torch

    from distdl_jupyter import log

    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if backend == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    torch.set_num_threads(1)
    large, batch = torch.randn(900, 900), torch.randn(16, 64)
    for step in range(100_000):
        large @ large
        loss = model(batch).square().mean()
        if rank == 1:
            time.sleep(pause)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss.item())


def begun(job):
    wait_for(lambda: job.state.ended or all((rank.last_step or 0) >= 3 for rank in job.view().ranks), 120, "steps")
    assert not job.state.ended, "\n".join(map(str, job.logs()))
    return job


def check_table(found, backend):
    assert (found.steps, [one.rank for one in found.ranks], found.missing) == (4, [0, 1], {})
    own = {one.name: one for one in found.operators if one.kind == "compute"}
    most = max(own.values(), key=lambda one: one.self_seconds)
    assert most.name == "aten::mm"
    assert all(seconds > 0.5 * most.self_seconds for seconds in most.by_rank.values())
    # Rank 0 waits in its all-reduce for rank 1, which sleeps 0.4 s. torch's profiler does not record Horovod's.
    assert all(one.seconds > 0.35 for one in found.ranks)
    assert backend != "torch" or max(one.by_rank[0] for one in found.operators if one.kind == "communication") > 0.15
    assert "aten::mm" in str(found)
    assert "aten::mm" in found._repr_html_()
    frame = found.to_pandas()
    assert set(frame["rank"]) == {0, 1}
    assert frame.loc[frame["operator"] == "aten::mm", "seconds"].min() > 0


def check_traces(found, backend):
    """The trace of each rank is torch's own, and has the work of all steps."""
    assert list(found.traces) == [0, 1]
    for trace in found.traces.values():
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        names = [event.get("name") for event in events if event.get("ph") == "X"]
        assert names.count("aten::mm") >= 4
        assert backend != "torch" or names.count("gloo:all_reduce") >= 4


def check(found, backend):
    """Check a profile of ``train``, of four steps on two ranks."""
    check_table(found, backend)
    check_traces(found, backend)


def check_on_hosts(job, backend, hosts):
    """Check a profile of a job that runs ``train`` on two hosts."""
    try:
        found = begun(job).profile(4, timeout=200)
    finally:
        job.cancel(now=True)
        job.wait(60)
    check(found, backend)
    assert [one.host for one in found.ranks] == hosts

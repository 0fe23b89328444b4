"""A job with a known slow operator and a rank that comes late to each all-reduce, and what its profile must say."""

import gzip
import json

from distdl_jupyter.core.step_times import PARTS
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


def sleeps():
    """Report which share of each step it waited for its batch, slept, and multiplied matrices."""
    import time

    import torch

    from distdl_jupyter import log

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, at):
            time.sleep(0.15)
            return torch.randn(64)

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    large = torch.randn(700, 700)
    begin = time.perf_counter()
    for step, batch in enumerate(torch.utils.data.DataLoader(Slow(), batch_size=1)):
        data = time.perf_counter() - begin
        time.sleep(0.2)
        compute = time.perf_counter()
        while time.perf_counter() < compute + 0.15:
            large @ large
        compute = time.perf_counter() - compute
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = time.perf_counter() - begin
        begin += whole
        log(step=step, data=data / whole, compute=compute / whole, rest=1 - (data + compute) / whole)


def begun(job):
    wait_for(lambda: job.state.ended or all((rank.last_step or 0) >= 3 for rank in job.view().ranks), 120, "steps")
    assert not job.state.ended, "\n".join(map(str, job.logs()))
    return job


def check_table(found):
    assert (found.steps, [one.rank for one in found.ranks], found.missing) == (4, [0, 1], {})
    own = {one.name: one for one in found.operators if one.kind == "compute"}
    most = max(own.values(), key=lambda one: one.own)
    assert most.name == "aten::mm"
    assert all(seconds > 0.5 * most.own for seconds in most.by_rank.values())
    first, second = found.ranks
    # Rank 0 waits for rank 1, which sleeps 0.4 s.
    assert first.waiting > 0.15
    assert second.waiting < first.waiting / 2
    assert found.operators[0].kind in ("communication", "compute", "python")
    assert 0.99 < sum(found.share(part) for part in PARTS) < 1.01
    # Rank 1 sleeps, which is no computation of an operator.
    assert second.rest > 0.35
    assert second.compute < second.seconds - 0.35
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
    check_table(found)
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

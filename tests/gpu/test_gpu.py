"""Real jobs on a real GPU: the step clock and its cost, warm starts, NCCL, NVML, errors. One GPU is enough."""

import gzip
import importlib.util
import random
import statistics
import time

import pytest
import torch

from distdl_jupyter import check, submit
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import State
from distdl_jupyter.warm import start as warm_start
from tests.client import checked
from tests.conftest import wait_for
from tests.warm.conftest import assert_warm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]

#: Seconds of extra work on a GPU in each step of rank 1.
SECONDS = 0.1


def hook_failures(job):
    codes = ("hook-failed", "step-times-failed")
    return [note["text"] for note in job.view().notes if note.get("code") in codes]


def train_on_one_gpu(steps, where="", seconds=SECONDS):
    """Train on ``cuda:0`` over Gloo; the GPU of rank 1 has extra work after each step, or in the forward pass."""
    import torch
    import torch.distributed as dist

    def cycles_of_a_second():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        torch.cuda._sleep(100_000_000)
        end.record()
        end.synchronize()
        return 100_000_000 / (begin.elapsed_time(end) / 1000)

    dist.init_process_group("gloo")
    own = where if dist.get_rank() == 1 else ""
    cycles = int(seconds * cycles_of_a_second())
    dist.barrier()
    net = torch.nn.Linear(256, 256).cuda()
    if own == "compute":
        net.register_forward_pre_hook(lambda *_: torch.cuda._sleep(cycles))
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    rows = torch.utils.data.DataLoader(torch.randn(steps * 8, 256), batch_size=8)
    for batch in rows:
        optimizer.zero_grad()
        net(batch.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
        if own == "rest":
            torch.cuda._sleep(cycles)
    return dist.get_rank()


@pytest.mark.parametrize("where", ["rest", "compute"])
def test_rank_whose_gpu_has_more_to_do_is_named_with_cause_and_cost(where):
    job = submit(train_on_one_gpu, (20, where), process_count_per_node=2, distributed_backend="torch")
    assert job.results(timeout=150) == [0, 1]
    assert hook_failures(job) == []
    times = job.time()
    slow, other = times.ranks()[1], times.ranks()[0]
    assert getattr(slow, where) - getattr(other, where) == pytest.approx(SECONDS, rel=0.1), str(times)
    assert other.waiting - slow.waiting == pytest.approx(SECONDS, rel=0.1), str(times)
    assert (times.straggler.rank, times.straggler.cause) == (1, where)
    assert times.straggler.seconds == pytest.approx(SECONDS, rel=0.1)


def train_short_steps(steps, backend):
    """Train ``steps`` short steps on a GPU; return the mean step of the last half, in seconds, by the GPU's clock."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    batch = torch.randn(64, 512, device="cuda")
    for step in range(steps):
        if step == steps // 2:
            begin.record()
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / (steps - steps // 2)


def test_short_steps_over_nccl_add_up_to_the_time_on_the_gpu():
    job = submit(train_short_steps, (600, "nccl"), process_count_per_node=1, distributed_backend="torch")
    (seconds,) = job.results(timeout=150)
    times = job.time()
    assert hook_failures(job) == []
    assert [row.step for row in times.rows] == list(range(600))
    late = [row.seconds for row in times.rows if row.step >= 300]
    assert statistics.mean(late) == pytest.approx(seconds, rel=0.05)
    (mean,) = times.ranks()
    assert 0 < mean.compute < mean.seconds


def capture_a_graph():
    """Capture a whole step in a CUDA graph after some that are not captured; return how often it was replayed."""
    import torch

    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch = torch.randn(8, 64, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        net(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(10):
        graph.replay()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    return 10


def test_step_that_is_captured_into_a_graph_is_left_alone():
    job = submit(capture_a_graph, process_count_per_node=1, distributed_backend="torch")
    assert job.results(timeout=150) == [10]
    assert hook_failures(job) == []
    assert len({row.step for row in job.time().rows}) == 9


def use_gpu(seconds=0.0):
    """Fill memory of the GPU and keep it busy; return what an all-reduce over NCCL says, and the device."""
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    one = torch.ones(1, device="cuda")
    dist.all_reduce(one)
    held = torch.ones(512, 1024, 1024, device="cuda")  # 2 GiB
    until = time.monotonic() + seconds
    work = torch.randn(4096, 4096, device="cuda")
    while time.monotonic() < until:
        (work @ work).sum().item()
    return one.item(), str(held.device)


def test_jobs_start_warm_and_use_the_gpu_over_nccl():
    first = submit(use_gpu, process_count_per_node=1, distributed_backend="torch")
    assert first.results(timeout=150) == [(1.0, "cuda:0")]
    second = submit(use_gpu, process_count_per_node=1, distributed_backend="torch")
    assert second.results(timeout=150) == [(1.0, "cuda:0")]
    assert_warm(second)


def test_use_of_the_gpu_is_sampled():
    job = submit(use_gpu, (5.0,), process_count_per_node=1, distributed_backend="torch")
    job.results(timeout=150)
    frame = job.resources().to_pandas()
    assert frame["gpu"].max() > 20
    assert frame["gpu_memory"].max() > 2 * 2**30
    assert frame["gpu_limit"].max() > 10 * 2**30
    assert frame["power"].max() > 50


def keep_losses(seconds):
    """Train with steps whose losses are kept, each with its own graph."""
    import time

    import torch

    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    kept, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        loss = model(torch.randn(8192, 1024, device="cuda")).square()  # 32 MiB
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
        time.sleep(0.05)
    return torch.cuda.memory_allocated()


def test_memory_of_tensors_is_sampled_beside_that_of_the_gpu():
    job = submit(keep_losses, (6.0,), process_count_per_node=1, distributed_backend="torch")
    (at_the_end,) = job.results(timeout=150)
    frame = job.resources().to_pandas().dropna(subset=["torch_allocated"])
    assert frame["torch_allocated"].is_monotonic_increasing
    assert 2**29 < frame["torch_allocated"].max() <= at_the_end
    assert (frame["torch_allocated"] <= frame["torch_reserved"]).all()
    assert (frame["torch_reserved"] < frame["gpu_memory"]).all()


def fill_memory():
    import torch

    return [torch.empty(1 << 40, dtype=torch.uint8, device="cuda")]


def hold_memory_and_fill_it():
    import torch

    held = [torch.ones(1 << 28, device="cuda") for _ in range(4)]  # 4 GiB
    free, _ = torch.cuda.mem_get_info()
    return held, torch.empty(free + (1 << 30), dtype=torch.uint8, device="cuda")


def index_beyond():
    import torch

    values = torch.zeros(4, device="cuda")
    picked = values[torch.tensor([7], device="cuda")]
    torch.cuda.synchronize()
    return picked


def test_full_memory_of_a_gpu_gets_a_hint():
    failure = submit(fill_memory, process_count_per_node=1, distributed_backend="torch").wait(100).view().failure
    assert failure.error["type"].endswith("OutOfMemoryError")
    assert "smaller batch" in failure.error["hint"]
    memory = failure.error["gpu_memory"]
    assert memory["requested"] == 1 << 40
    assert 0 < memory["free"] <= memory["total"]


def test_lines_that_hold_the_memory_of_a_gpu_are_named():
    job = submit(hold_memory_and_fill_it, process_count_per_node=1, distributed_backend="torch", record_gpu_memory=True)
    failure = job.wait(100).view().failure
    memory = failure.error["gpu_memory"]
    assert memory["recorded"]
    (largest, *_) = memory["lines"]
    assert (largest["size"], largest["count"]) == (4 << 30, 4)
    assert f"line {largest['line']} (4 blocks)" in failure.error["hint"]


def test_device_side_assert_ends_its_job_alone():
    failure = submit(index_beyond, process_count_per_node=1, distributed_backend="torch").wait(100).view().failure
    assert "device-side assert" in failure.error["message"]
    assert failure.code == "device-side-assert"
    assert "index out of bounds" in failure.error["hint"]
    assert "CUDA_LAUNCH_BLOCKING=1" in failure.error["hint"]
    job = submit(use_gpu, process_count_per_node=1, distributed_backend="torch")
    assert job.results(timeout=150) == [(1.0, "cuda:0")]


def train_compiled(width):
    """Train a compiled model of this width.

    Return whether it learns, how many graphs inductor compiled and had kept, and whether it was imported ahead.
    """
    import sys

    imported = "torch._inductor.compile_fx" in sys.modules and "triton" in sys.modules
    import torch
    from torch._dynamo.utils import counters

    net = torch.nn.Linear(64, width).cuda()
    compiled = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = compiled(torch.ones(8, 64, device="cuda")).relu().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    kept = counters["aot_autograd"]["autograd_cache_hit"]
    missed = counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"]
    return losses[-1] < losses[0], missed, kept, imported


def test_second_compiled_job_compiles_nothing_and_imports_nothing():
    width = random.randrange(100, 10_000)  # no earlier run has compiled it
    first = submit(train_compiled, (width,), process_count_per_node=1, distributed_backend="torch")
    learns, missed, kept, _ = first.result(timeout=180)
    assert learns
    assert missed > 0
    assert kept == 0
    assert hook_failures(first) == []
    assert len(first.time().rows) == 20
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        job = submit(train_compiled, (width,), process_count_per_node=1, distributed_backend="torch")
        learns, missed, kept, imported = job.result(timeout=180)
        assert (learns, missed, kept) == (True, 0, 1)
        if imported:
            break
        time.sleep(5)
    assert imported, warm_start.get_template_files().log.read_text()
    assert_warm(job)


def train_for_a_while():
    """Train steps of some milliseconds until the job is canceled."""
    import torch

    from distdl_jupyter import log

    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch = torch.randn(512, 2048, device="cuda")
    step = 0
    while True:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            log(step=step, loss=loss.item())


def test_profile_shows_the_kernels_of_the_gpu():
    job = submit(train_for_a_while, process_count_per_node=1, distributed_backend="torch")
    wait_for(lambda: job.view().metrics, 100)
    found = job.profile(4, timeout=100)
    job.cancel()
    assert any(operator.kind == "gpu" for operator in found.operators)
    frame = found.to_pandas()
    assert (frame["kind"] == "gpu").any(), frame.to_string()
    assert b'"kernel"' in gzip.decompress(found.traces[0].read_bytes())
    assert job.wait(60).state == State.CANCELED


def test_second_job_waits_for_the_one_gpu():
    if torch.cuda.device_count() != 1:
        pytest.skip("more than one GPU")
    first = submit(use_gpu, (8.0,), process_count_per_node=1, distributed_backend="torch", gpus=1)
    wait_for(lambda: first.view().state == State.RUNNING, 100)
    second = submit(use_gpu, process_count_per_node=1, distributed_backend="torch", gpus=1)
    waiting = wait_for(lambda: second.view().queue, 60)
    assert waiting.position == 1
    assert second.results(timeout=150) == first.results(timeout=10) == [(1.0, "cuda:0")]
    assert second.view().phases[0].started is not None


def sleep_after_an_all_reduce():
    import time

    import torch
    import torch.distributed as dist

    from distdl_jupyter import log

    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(2, 3, device="cuda"))
    torch.cuda.synchronize()
    log(step=0, loss=1.0)
    time.sleep(600)


def test_last_operation_over_nccl_is_shown_with_its_line():
    job = submit(sleep_after_an_all_reduce, process_count_per_node=1, distributed_backend="torch")
    wait_for(lambda: job.view().metrics, 100)
    shown = job.stacks()
    job.cancel()
    (row,) = shown.collectives
    assert row.operation == "all_reduce", row
    assert row.sizes == "[2, 3]", row
    assert row.line, row
    assert job.wait(60).state == State.CANCELED


def reduce_over_nccl():
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    one = torch.ones(1, device="cuda")
    dist.all_reduce(one)
    return one.item()


def test_more_ranks_than_gpus_are_refused_over_nccl():
    with pytest.raises(DistDLError) as raised:
        submit(reduce_over_nccl, process_count_per_node=torch.cuda.device_count() + 1, distributed_backend="torch")
    assert raised.value.code == "nccl-call-needs-gpus"


def test_ranks_that_share_a_gpu_train_over_nccl_where_it_can():
    count = torch.cuda.device_count() + 1
    job = submit(reduce_over_nccl, process_count_per_node=count, distributed_backend="torch",
                 environment_variables={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})  # fmt: skip
    job.wait(150)
    print("NCCL", torch.cuda.nccl.version(), job.state, job.view().failure)
    if torch.cuda.nccl.version() >= (2, 32):
        assert job.results(timeout=10) == [float(count)] * count
    else:
        assert job.view().failure.code == "nccl-shared-gpu"


def train_with_horovod(steps):
    """Train on a GPU with Horovod; return whether it was built with NCCL, and the device of the gradients."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    net = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    total = hvd.allreduce(torch.ones(3, device="cuda"), op=hvd.Sum)
    return bool(hvd.nccl_built()), total.tolist(), str(total.device)


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
def test_horovod_trains_over_nccl():
    job = submit(train_with_horovod, (20,), process_count_per_node=1, distributed_backend="horovod")
    assert job.results(timeout=180) == [(True, [1.0, 1.0, 1.0], "cuda:0")]
    assert hook_failures(job) == []
    assert len(job.time().rows) == 20


@pytest.mark.parametrize(("mistake", "codes"), [("", []), ("no-wrapper", ["gradients-not-averaged"])])
def test_check_finds_the_mistake_and_nothing_else_on_a_gpu(mistake, codes):
    found = check(checked.trains, (mistake, "torch"), {"device": "cuda"}, steps=2)
    assert [one.code for one in found.findings] == codes, str(found)
    assert found.steps == 2

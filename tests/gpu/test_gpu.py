"""Real jobs on a real GPU: the step clock and its cost, warm starts, NCCL, NVML, errors. One GPU is enough."""

import statistics

import pytest
import torch

from distdl_jupyter import check, submit
from tests.client import checked
from tests.warm.conftest import assert_warm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]

#: Seconds of extra work on a GPU in each step of rank 1.
SECONDS = 0.1


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
    assert [note["text"] for note in job.view().notes if note.get("code") in ("hook-failed", "step-times-failed")] == []
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
    assert [note["text"] for note in job.view().notes if note.get("code") in ("hook-failed", "step-times-failed")] == []
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
    assert [note["text"] for note in job.view().notes if note.get("code") in ("hook-failed", "step-times-failed")] == []
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


def train_compiled():
    import torch

    net = torch.nn.Linear(64, 64).cuda()
    compiled = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = compiled(torch.ones(8, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0]


def test_compiled_training_runs_and_is_measured():
    job = submit(train_compiled, process_count_per_node=1, distributed_backend="torch")
    assert job.results(timeout=180) == [True]
    assert [note["text"] for note in job.view().notes if note.get("code") in ("hook-failed", "step-times-failed")] == []
    assert len(job.time().rows) == 20


@pytest.mark.parametrize(("mistake", "codes"), [("", []), ("no-wrapper", ["gradients-not-averaged"])])
def test_check_finds_the_mistake_and_nothing_else_on_a_gpu(mistake, codes):
    found = check(checked.trains, (mistake, "torch"), {"device": "cuda"}, steps=2)
    assert [one.code for one in found.findings] == codes, str(found)
    assert found.steps == 2

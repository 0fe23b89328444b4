"""A small convolutional network on random pictures, trained for a few hundred steps: the time of a warm step.

    BENCH_BACKEND=horovod|torch BENCH_TOLD=FILE BENCH_LOG=0|1 python steady.py

Rank 0 writes two numbers into the file: steps per second, and the CPU seconds of its training thread per step. Both
are medians over windows of 20 steps, after the first 40 steps, so a short disturbance does not count. With BENCH_LOG=1
every rank calls ``log()`` in every step; nothing else differs. One thread per rank, because launchers differ in that.
"""

import itertools
import os
import statistics
import time

WARM_UP, WINDOW, WINDOWS, BATCH = 40, 20, 12, 32


def network(torch):
    """Return a network of two convolutions for pictures of 28 x 28."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(512, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
    )  # fmt: skip


def parts(torch, backend):
    """Return this rank's number, its model and its optimizer."""
    torch.manual_seed(0)
    model = network(torch)
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
        return hvd.rank(), model, optimizer
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), lr=0.01)


def main():
    import torch

    torch.set_num_threads(1)
    log = None
    if os.environ["BENCH_LOG"] == "1":
        from distdl_jupyter import log
    rank, model, optimizer = parts(torch, os.environ["BENCH_BACKEND"])
    pictures, digits = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    moments = []
    for step in range(WARM_UP + WINDOW * WINDOWS + 1):
        if step >= WARM_UP and (step - WARM_UP) % WINDOW == 0:
            moments.append((time.perf_counter(), time.thread_time()))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pictures), digits)
        loss.backward()
        optimizer.step()
        value = loss.item()
        if log is not None:
            log(step=step, loss=value)
    taken, cpu = (
        statistics.median(end[at] - begin[at] for begin, end in itertools.pairwise(moments)) / WINDOW for at in (0, 1)
    )
    if rank == 0:
        with open(os.environ["BENCH_TOLD"], "w") as file:
            file.write(f"{1 / taken!r} {cpu!r}")
    if os.environ["BENCH_BACKEND"] == "torch":
        torch.distributed.destroy_process_group()


main()

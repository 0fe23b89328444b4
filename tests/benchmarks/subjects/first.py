"""A training whose first optimizer step is told: the same text under every launcher, as script and as function.

    BENCH_BACKEND=horovod|torch BENCH_TOLD=FILE python first.py

Rank 0 writes the wall clock of the end of its first step into the file. Must import nothing of this project: it runs in
the peers' environment too.
"""

import os
import time


def train(backend: str, told: str) -> float:
    """Meet the other ranks, take one step, tell when; return the time that rank 0 told (or would have)."""
    import torch

    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    else:
        import torch.distributed as dist

        alone = not dist.is_initialized()  # some launchers have joined the ranks already
        if alone:
            dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(rank)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    if backend == "horovod":
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    else:
        network = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy(network(torch.randn(32, 64)), torch.randint(10, (32,)))
    loss.backward()
    optimizer.step()
    now = time.time()
    if rank == 0:
        with open(f"{told}.part", "w") as file:
            file.write(repr(now))
        os.rename(f"{told}.part", told)
    if backend == "torch" and alone:
        dist.destroy_process_group()
    return now


if __name__ == "__main__":
    train(os.environ["BENCH_BACKEND"], os.environ["BENCH_TOLD"])

"""Functions that ranks run in these stories; they are sent to the hosts, so they import nothing of the tests."""


def with_horovod(steps=5):
    import os
    import socket

    import horovod.torch as hvd
    import torch

    from distdl_jupyter import log

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss)
        print(f"rank {hvd.rank()} step {step}")
    return {
        "rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size(),
        "cross_rank": hvd.cross_rank(), "cross_size": hvd.cross_size(), "host": os.environ["DISTDL_HOST"],
        "machine": socket.gethostname(), "weights": model.weight.detach().flatten().tolist(),
    }  # fmt: skip


def with_torch(steps=5):
    import os
    import socket

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from distdl_jupyter import log

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss)
        print(f"rank {rank} step {step}")
    return {
        "rank": rank, "size": dist.get_world_size(), "local_rank": int(os.environ["LOCAL_RANK"]),
        "local_size": int(os.environ["LOCAL_WORLD_SIZE"]), "cross_rank": int(os.environ["GROUP_RANK"]),
        "cross_size": int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        "host": os.environ["DISTDL_HOST"], "machine": socket.gethostname(),
        "weights": model.module.weight.detach().flatten().tolist(),
    }  # fmt: skip


def machine():
    import socket

    return socket.gethostname()

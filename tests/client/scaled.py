"""Training whose steps last as long as a test wants."""

import os
import time


def returns():
    return 1


def fails():
    raise ValueError("no such file of data")


def sleeps(seconds=0.05):
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if {"HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"} & os.environ.keys():
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    print("threads", torch.get_num_threads())
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(800, 4)), batch_size=8)
    while True:
        for (x,) in data:
            loss = model(x).pow(2).mean()
            time.sleep(seconds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

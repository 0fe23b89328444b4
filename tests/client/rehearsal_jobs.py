"""Training code whose computation sleeps, so that the cores of the machine do not matter."""


def train(horovod, seconds=0.2, count=1024 * 1024):
    """Train a model of ``count`` weights of 4 bytes until this is canceled."""
    import time

    import torch

    torch.set_num_threads(1)  # a process by itself would get more of them than each of several
    model = torch.nn.Linear(count, 1, bias=False)
    if horovod:
        import horovod.torch as hvd

        hvd.init()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    else:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.ones(1, count)
    while True:
        time.sleep(seconds)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

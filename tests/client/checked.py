"""Training on two ranks that is right, or has one mistake."""

import os


def trains(mistake="", backend="torch", epochs=50, device="cpu"):  # noqa: C901  one place for each mistake
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
    else:
        torch.distributed.init_process_group("gloo")
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(256, 12, generator=drawn)
    y = (x @ torch.randn(12, 1, generator=drawn)).tanh() + 0.5
    torch.manual_seed(rank if mistake == "unseeded" else 0)
    layers = [nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 1)]
    if mistake == "batch-norm":
        layers.insert(1, nn.BatchNorm1d(40))
    if mistake == "dropout":
        layers.insert(2, nn.Dropout(0.5))
    model = nn.Sequential(*layers).to(device)
    rate = 0.05 if mistake == "rate" else 0.05 * size
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * (1 + (mistake == "one-rank-rate" and rank)), momentum=0.9)
    by_hand = mistake in ("sum", "unseeded")
    if backend == "horovod":
        op = hvd.Sum if mistake == "sum" else hvd.Average
        if mistake != "no-wrapper":
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=op)
        if mistake != "unseeded":
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    elif not by_hand and mistake != "no-wrapper":
        model = nn.parallel.DistributedDataParallel(model)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    if mistake == "same-data":
        loader = DataLoader(data, batch_size=8)
    elif mistake == "all-data":
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(rank))
    else:
        loader = DataLoader(data, batch_size=8, sampler=sampler)
    reduction = "sum" if mistake == "sum-loss" else "mean"

    def own():
        part = slice(None) if mistake == "own-same" else slice(rank, None, size)
        for begin in range(0, len(x[part]), 8):
            yield x[part][begin : begin + 8], y[part][begin : begin + 8]

    for epoch in range(epochs):
        if mistake != "no-set-epoch":
            sampler.set_epoch(epoch)
        for inputs, targets in own() if mistake.startswith("own") else loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device), reduction=reduction)
            loss.backward()
            if by_hand and backend == "torch":
                for one in model.parameters():
                    torch.distributed.all_reduce(one.grad)
                    if mistake != "sum":
                        one.grad /= size
            optimizer.step()
    return "never"


if __name__ == "__main__":
    trains(os.environ.get("MISTAKE", ""))


def departs(backend="torch", at=0, every_own=False):
    """Train right, but for rank 1's weights after step ``at``; ``every_own``: each rank has parameters of its own."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if backend.startswith("horovod"):
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
        if not every_own:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        if not every_own:
            model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(rank)
    for step in range(1, 31):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if step == at and rank == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-4
    return [one.detach().clone() for one in model.parameters()]

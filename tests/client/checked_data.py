"""Training on two ranks whose data is divided in several ways, or not, and whose gradients are accumulated."""

import contextlib


def trains(data, *, join=False, workers=0, epochs=3):
    """Train with the data set that ``data(rank, size)`` returns."""
    import torch
    from torch.utils.data import DataLoader

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data_set = data(torch.distributed.get_rank(), torch.distributed.get_world_size())
    with model.join() if join else contextlib.nullcontext():
        for _ in range(epochs):
            for x in DataLoader(data_set, batch_size=8, num_workers=workers):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()


def samples(seed, count=48):
    import torch

    drawn = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, 5, generator=drawn))


def file_of_rank(rank, _size):
    return samples(rank, 24)


def uneven(rank, _size):
    return samples(0)[:16] if rank == 0 else samples(0)[16:]


def stream(_rank, _size):
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(samples(0))

    return Stream()


def stream_of_rank(rank, _size):
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(samples(rank))

    return Stream()


def noisy(rank, _size):
    import torch

    class Noisy(torch.utils.data.Dataset):
        def __init__(self):
            self.samples = samples(rank)

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, at):
            return self.samples[at] + 0.1 * torch.randn(5)

    return Noisy()


def accumulates(mistake, steps=12):
    """Train with two micro-batches a step."""
    import torch

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(torch.distributed.get_rank())
    for batch in range(steps):
        last = batch % 2 == 1
        x = torch.randn(8, 5)
        if mistake == "between":
            model.require_backward_grad_sync = False
            loss = model(x).pow(2).mean()  # the forward pass
            model.require_backward_grad_sync = last
            loss.backward()
        elif mistake == "inside":
            with model.no_sync():
                model(x).pow(2).mean().backward()
                optimizer.step()
        else:
            with model.no_sync() if last == (mistake == "wrong") else contextlib.nullcontext():
                model(x).pow(2).mean().backward()  # the backward pass
        if last and mistake != "inside":
            optimizer.step()
            optimizer.zero_grad()


def fits(devices=None):
    """Train with Lightning, on as many processes as it chooses itself or on ``devices``."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(5, 1)

        def training_step(self, batch, _at):
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.manual_seed(0)
    given = {"devices": devices, "strategy": "ddp"} if devices else {}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, **given)
    trainer.fit(Model(), torch.utils.data.DataLoader(samples(0), batch_size=8, shuffle=True))


def fits_with_fabric(devices=None):
    """Train with Lightning's Fabric, on as many processes as it chooses itself or on ``devices``."""
    import torch
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", **({"devices": devices, "strategy": "ddp"} if devices else {}))
    fabric.launch()
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(samples(0), batch_size=8, shuffle=True))
    for batch in loader:
        optimizer.zero_grad()
        fabric.backward(model(batch).pow(2).mean())
        optimizer.step()


def local_sgd():
    import torch
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    torch.manual_seed(accelerator.process_index)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True) as local:
        for _ in range(24):
            accelerator.backward(model(torch.randn(8, 5)).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
            local.step()

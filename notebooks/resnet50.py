"""ResNet-50 on synthetic ImageNet batches: how many images a second some processes train.

The same file is imported by ``resnet50.ipynb`` and runs as an ``entry_script``, on this machine, Slurm or Azure ML,
under Horovod or torch.distributed, on GPUs where there are some, else on one core for each process.
"""

import argparse
import os
import time

import torch
from torch import nn

from distdl_jupyter import log

#: Numbers of a ResNet-50 for 1,000 classes; torchvision's has as many.
PARAMETERS = 25_557_032


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut (He et al., 2015, https://arxiv.org/abs/1512.03385, version 1.5)."""

    def __init__(self, inside, planes, stride):
        super().__init__()
        outside = 4 * planes
        self.layers = nn.Sequential(
            nn.Conv2d(inside, planes, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(inplace=True),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(inplace=True),
            nn.Conv2d(planes, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )  # fmt: skip

    def forward(self, images):
        return torch.relu(self.layers(images) + self.shortcut(images))


def resnet50():
    """Return torchvision's network where it is installed, else the same in plain torch."""
    try:
        from torchvision.models import resnet50 as ready
    except ImportError:
        pass
    else:
        return ready()
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for planes, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inside, planes, stride if block == 0 else 1))
            inside = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def meet():
    """Meet the other processes; return (rank, size, device, what makes a network and its optimizer distributed)."""
    if "HOROVOD_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        import horovod.torch as hvd

        hvd.init()
        device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")

        def together(network, optimizer):
            hvd.broadcast_parameters(network.state_dict(), root_rank=0)
            return network, hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

        return hvd.rank(), hvd.size(), device, together

    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")

    def together(network, optimizer):
        if not dist.is_initialized():
            return network, optimizer
        return nn.parallel.DistributedDataParallel(network, [device.index] if on_gpu else None), optimizer

    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), device, together


def train(steps=60, batch=None, pixels=None):
    """Train on batches of noise and return the images a second of all processes.

    On GPUs a batch has 64 images of 224 x 224 pixels, on a processor 4 of 32 x 32, unless these are given.
    """
    rank, size, device, together = meet()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(1)  # a core for each process, so that one and several compare
    batch, pixels = batch or (64 if on_gpu else 4), pixels or (224 if on_gpu else 32)
    torch.manual_seed(rank)
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    network = resnet50().to(device)
    assert sum(one.numel() for one in network.parameters()) == PARAMETERS
    network, optimizer = together(network, torch.optim.SGD(network.parameters(), lr=0.01 * size, momentum=0.9))
    warm_up = min(5, steps - 1)
    begun = time.perf_counter()
    for step in range(steps):
        log(samples=batch)  # no DataLoader says it
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        if step + 1 == warm_up:
            if on_gpu:
                torch.cuda.synchronize()
            begun = time.perf_counter()
    if on_gpu:
        torch.cuda.synchronize()
    rate = size * batch * (steps - warm_up) / (time.perf_counter() - begun)
    if rank == 0:
        where = torch.cuda.get_device_name() if on_gpu else "one core each"
        print(f"{rate:.1f} images/s on {size} x {where}, {batch} images of {pixels} x {pixels} pixels a step")
    return rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, help="images of a process in a step")
    parser.add_argument("--pixels", type=int, help="width and height of an image")
    train(**vars(parser.parse_args()))

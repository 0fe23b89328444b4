"""What a first cell sets up for training step by step; the same text on our ranks and on a peer's engines."""

import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
pictures, digits = torch.randn(32, 64), torch.randint(10, (32,))


def step():
    """Take one optimizer step and return the loss."""
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(pictures), digits)
    loss.backward()
    optimizer.step()
    return loss.item()

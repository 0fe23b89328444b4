"""A training loop of one rank with DistributedDataParallel: ``training.py SIZE`` prints the seconds of a step.

``train`` runs in a job as it is; as a script it runs under a launcher.
"""

import sys

#: Device, layers, their width, rows of a batch, and steps that are counted.
SIZES = {
    "2 ms on a GPU": ("cuda", 8, 2048, 1024, 1500),
    "a small step on a GPU": ("cuda", 8, 64, 64, 2000),
    "a small step": ("cpu", 1, 8, 64, 3000),
    "10 ms": ("cpu", 1, 1000, 64, 200),
}


def train(device: str, layers: int, width: int, batch: int, steps: int, warm_up: int = 200) -> float:
    """Train, and return the seconds of a step by the wall clock."""
    import time

    import torch
    from torch import distributed
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    net = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.ones(batch, width, device=device)
    begin = 0.0
    for number, rows in enumerate(DataLoader(torch.ones(warm_up + steps, 8), batch_size=1)):
        if number == warm_up:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad()
        (model(inputs) * rows[0, 0].item()).square().mean().backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    distributed.destroy_process_group()
    return seconds


if __name__ == "__main__":
    print(f"seconds a step: {train(*SIZES[sys.argv[1]]):.9f}", flush=True)

"""What the hooks of a rank cost in a training step: ``steps.py WIDTH BLOCKS`` prints microseconds of a step.

One process trains with DistributedDataParallel over Gloo, in blocks of steps with all hooks on and off in turn. The
time is the training thread's own CPU time, so other processes change the difference little. The first steps, of which
more are measured, do not count.
"""

import os
import statistics
import sys
import time

WIDTH, BLOCKS = map(int, sys.argv[1:])
STEPS, WARM_UP = 250, 1000


def main() -> None:
    """Train and print."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # of the reports
    os.environ.update(DISTDL_NONCE="0" * 12, DISTDL_RANK="0")
    import torch
    from torch.optim import optimizer as optimizers
    from torch.utils.data import DataLoader, dataloader

    parallel, work = torch.nn.parallel.DistributedDataParallel, torch.distributed.distributed_c10d.Work
    owners = (torch.autograd, parallel, DataLoader, dataloader._BaseDataLoaderIter, work)
    plain = [dict(vars(owner)) for owner in owners]
    from distdl_jupyter.worker import rank

    rank.install_hooks()
    changed = [
        (owner, name, before[name], value)
        for owner, before in zip(owners, plain, strict=True)
        for name, value in vars(owner).items()
        if name in before and value is not before[name]
    ]
    hooks = dict(optimizers._global_optimizer_post_hooks)

    def switch(*, on: bool) -> None:
        optimizers._global_optimizer_post_hooks.clear()
        optimizers._global_optimizer_post_hooks.update(hooks if on else {})
        for owner, name, without, with_ in changed:
            setattr(owner, name, with_ if on else without)

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    inputs = torch.ones(64, WIDTH)

    def train(steps: int) -> float:
        loader = iter(DataLoader(torch.ones(steps, 8), batch_size=1))
        begin = time.thread_time()
        for _ in loader:
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
        return 1e6 * (time.thread_time() - begin) / steps

    train(WARM_UP)
    times: dict[bool, list[float]] = {True: [], False: []}
    for block in range(2 * BLOCKS):
        on = (block + block // 2) % 2 == 0  # on, off, off, on: what becomes slower does so for both
        switch(on=on)
        train(20)
        times[on].append(train(STEPS))
    cost = statistics.median(a - b for a, b in zip(times[True], times[False], strict=True))
    os.write(out, f"{cost:.2f}\n".encode())


if __name__ == "__main__":
    main()

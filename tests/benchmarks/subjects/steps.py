"""What the hooks of a rank cost in a training step: ``steps.py WIDTH PAIRS`` prints microseconds of a step.

One process trains with DistributedDataParallel over Gloo, in short blocks of steps with all hooks on and off in turn.
The difference of the medians of two neighboring blocks depends little on other processes and on the speed of the
processor, which may change every second. Steps that the hooks measure take longer and are rare, so they count by their
share. The first steps, of which more are measured, do not count.
"""

import os
import statistics
import sys
import time
from itertools import pairwise

WIDTH, PAIRS = map(int, sys.argv[1:])
STEPS, SETTLE, WARM_UP = 40, 10, 1200


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
    from distdl_jupyter.worker.step_times import recorder

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

    def train(steps: int) -> list[tuple[float, bool]]:
        """Return the microseconds of each step after the first, and whether the hooks measured it."""
        moments = []
        for _ in DataLoader(torch.ones(steps, 8), batch_size=1):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
            moments.append((time.perf_counter_ns(), recorder.is_detailed))  # of the next step
        return [((end - begin) / 1000, measured) for (begin, measured), (end, _) in pairwise(moments)]

    train(WARM_UP)
    costs, measured_costs, steps = [], [], 0
    for pair in range(PAIRS):
        times: dict[bool, list[tuple[float, bool]]] = {}
        for on in (pair % 2 == 0, pair % 2 == 1):  # on, off, off, on: what becomes slower does so for both
            switch(on=on)
            times[on] = train(SETTLE + STEPS)[SETTLE:]
        plain_time = statistics.median(t for t, _ in times[False])
        skipped_times = [t for t, measured in times[True] if not measured]
        costs.append(statistics.median(skipped_times) - plain_time)
        measured_costs += [t - plain_time for t, measured in times[True] if measured]
        steps += len(times[True])
    cost = statistics.median(costs)
    if measured_costs:
        cost += len(measured_costs) / steps * (statistics.median(measured_costs) - cost)
    os.write(out, f"{cost:.2f}\n".encode())


if __name__ == "__main__":
    main()

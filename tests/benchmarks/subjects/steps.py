"""A training loop of one rank, DistributedDataParallel over Gloo: ``steps.py WIDTH STEPS HOOKS`` prints seconds a step.

The time is the training thread's own processor time, so that a busy machine does not change the ratio. With HOOKS 1
the steps are measured as in a job, and their records go through a pipe to a process that reads them.
"""

import os
import subprocess
import sys
import time

WIDTH, STEPS, HOOKS = map(int, sys.argv[1:])
WARM_UP = 50


def main() -> None:
    """Train and print."""
    out = os.dup(1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        os.dup2(reader.stdin.fileno(), 1)
        os.environ.update(DISTDL_NONCE="0" * 12, DISTDL_RANK="0")
        if HOOKS:
            from distdl_jupyter.worker.watch import hooks, step_hooks

            step_hooks.watch(hooks.install())
        os.write(out, f"{_train():.9f}\n".encode())
        os.dup2(out, 1)
        reader.kill()  # the channel still holds the pipe, so it would wait for ever


def _train() -> float:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    rows = torch.ones(WARM_UP + STEPS, WIDTH)
    begin = 0.0
    for number, batch in enumerate(DataLoader(rows, batch_size=1)):
        if number == WARM_UP:
            begin = time.thread_time()
        optimizer.zero_grad()
        net(batch.expand(64, WIDTH)).square().mean().backward()
        optimizer.step()
    return (time.thread_time() - begin) / STEPS


if __name__ == "__main__":
    main()

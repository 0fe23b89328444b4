"""What one call of ``log`` costs the training loop, beside what it is made of and beside TensorBoard's writer.

``python tests/benchmarks/log_cost.py`` prints microseconds a call, and each as a multiple of the bare minimum (a JSON
line of the same content with one write). The reports go through a real pipe to a process that reads them. The time is
the calling thread's own, so that a busy machine does not change the ratios; what TensorBoard's second thread does is
not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

CALLS = 20_000
ROUNDS = 5


def main() -> None:
    """Measure each way and print a table."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        os.environ.update(DISTDL_NONCE="0" * 12, DISTDL_RANK="0")
        terminal = os.dup(1)
        os.dup2(reader.stdin.fileno(), 1)
        costs = {name: cost(call) for name, call in ways().items()}
        os.dup2(terminal, 1)
        reader.kill()  # this process still holds the pipe, so it would wait for ever
    least = costs["json.dumps + os.write"]
    for name, microseconds in costs.items():
        print(f"{name:44} {microseconds:8.2f} us a call {microseconds / least:8.2f} x")


def ways() -> dict[str, Callable[[int], object]]:
    """Return the calls to compare, each with a step."""
    import numpy as np
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from distdl_jupyter import log

    scalar, tensor = np.float32(0.25), torch.tensor(0.25)
    writer = SummaryWriter(tempfile.mkdtemp())
    many = {f"layer_{n}": 0.25 for n in range(20)}

    def bare(step: int) -> object:
        report = {"type": "metric", "t": time.time(), "rank": 0, "step": step, "values": {"loss": 0.25, "acc": 0.5}}
        return os.write(1, json.dumps(report).encode())

    return {
        "json.dumps + os.write": bare,
        "log(step, two floats)": lambda step: log(step=step, loss=0.25, acc=0.5),
        "log(two floats), steps counted": lambda _: log(loss=0.25, acc=0.5),
        "log(step, numpy scalar, tensor)": lambda step: log(step=step, loss=scalar, acc=tensor),
        "log(step, 20 floats)": lambda step: log(step=step, **many),
        "SummaryWriter.add_scalar, twice": lambda step: (
            writer.add_scalar("loss", 0.25, step),
            writer.add_scalar("acc", 0.5, step),
        ),
    }


def cost(call: Callable[[int], object]) -> float:
    """Return the least mean CPU time of a call over some rounds, in microseconds of the calling thread."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for step in range(CALLS):
            call(step)
        best = min(best, (time.thread_time() - begun) / CALLS * 1e6)
    return best


if __name__ == "__main__":
    sys.exit(main())

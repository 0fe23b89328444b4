"""What one call of ``log`` costs the training loop, beside what it is made of, a print and TensorBoard's writer.

``python -m tests.benchmarks.log_cost``. The reports go through a real pipe to a process that reads them. The time is
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.benchmarks import report
from tests.benchmarks.report import Report, interleaved

CALLS = 5_000
PEERS = ("json.dumps + os.write", "print(flush=True)", "SummaryWriter.add_scalar, twice")


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    os.environ.update(DISTDL_NONCE="0" * 12, DISTDL_RANK="0", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
    with tempfile.TemporaryDirectory() as folder, _into_a_pipe():
        each = ways(folder)
        times = interleaved({name: partial(cost, call) for name, call in each.items()}, turns)
    table = Report(
        "log() in the training loop, a call", "us", report.versions("distdl-jupyter", "tensorboard", "torch")
    )
    first, *others = (name for name in each if name not in PEERS)
    for peer in PEERS:
        table.compare(first, times[first], peer, times[peer])
    for name in others:
        table.compare(name, times[name], PEERS[0], times[PEERS[0]])
    yield table


@contextmanager
def _into_a_pipe() -> Iterator[None]:
    """Let this process's standard output go through a pipe to a process that reads it, for a while."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        terminal = os.dup(1)
        os.dup2(reader.stdin.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(terminal, 1)
            os.close(terminal)
            reader.kill()  # the report's channel still holds the pipe, so it would wait for ever


def ways(folder: str) -> dict[str, Callable[[int], object]]:
    """Return the calls to compare, each with a step; TensorBoard writes into ``folder``."""
    import numpy as np
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from distdl_jupyter import log

    scalar, tensor = np.float32(0.25), torch.tensor(0.25)
    writer = SummaryWriter(folder)
    many = {f"layer_{n}": 0.25 for n in range(20)}

    def bare(step: int) -> object:
        told = {"type": "metric", "t": time.time(), "rank": 0, "step": step, "values": {"loss": 0.25, "acc": 0.5}}
        return os.write(1, json.dumps(told).encode())

    def tensorboard(step: int) -> None:
        writer.add_scalar("loss", 0.25, step)
        writer.add_scalar("acc", 0.5, step)

    return {
        "log(step, two floats)": lambda step: log(step=step, loss=0.25, acc=0.5),
        "log(two floats), steps counted": lambda _: log(loss=0.25, acc=0.5),
        "log(step, numpy scalar, tensor)": lambda step: log(step=step, loss=scalar, acc=tensor),
        "log(step, 20 floats)": lambda step: log(step=step, **many),
        PEERS[0]: bare,
        PEERS[1]: lambda step: print(f"step {step} loss {0.25} acc {0.5}", flush=True),
        PEERS[2]: tensorboard,
    }


def cost(call: Callable[[int], object]) -> float:
    """Return the calling thread's processor time of a call, in seconds."""
    begun = time.thread_time()
    for step in range(CALLS):
        call(step)
    return (time.thread_time() - begun) / CALLS


if __name__ == "__main__":
    report.main(measure, turns=9)

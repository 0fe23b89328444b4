"""What a step of the same training takes as our job, beside ``torchrun``; on a GPU too where there is one.

``python -m tests.benchmarks.step_overhead``. One rank, DistributedDataParallel, no report of the code itself; each turn
in processes of its own, in turn. Seconds of a step by the wall clock, without the first 200 steps. The cost of the
hooks alone, on a CPU, is measured inside one process that trains with and without them in turn (``subjects/steps.py``).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import cloudpickle

import distdl_jupyter
from tests.benchmarks import report
from tests.benchmarks.launchers import SUBJECTS, workplace
from tests.benchmarks.report import Report, interleaved
from tests.benchmarks.subjects import training
from tests.processes import free_port

#: Microseconds that all hooks together may take of a step on a CPU; on a GPU the limit is a ratio of whole steps.
MOST, MOST_SHARE = 10.0, 1.01


def measure(turns: int) -> Iterator[Report]:
    """Yield a table for each size of a step."""
    import torch

    cloudpickle.register_pickle_by_value(training)
    has_gpu = torch.cuda.is_available()
    versions = report.versions("distdl-jupyter", "torch")
    if has_gpu:
        versions["on"] = torch.cuda.get_device_name()
    for name, (device, *_) in training.SIZES.items():
        table = Report(f"A step of a job, by the wall clock, 1 rank: {name}", "us", versions)
        if device == "cuda" and not has_gpu:
            table.missing("a step", "torchrun", "there is no GPU")
        else:
            with workplace():
                times = interleaved(
                    {"ours": partial(_ours, name), "plain": partial(_plain, name)}, turns, warm_up=False
                )
            most = MOST_SHARE if device == "cuda" else None
            table.compare("a step", times["ours"], "torchrun", times["plain"], at_most=most)
            cost = statistics.median(times["ours"]) - statistics.median(times["plain"])
            table.value("the difference", [cost])
        yield table
    table = Report("All hooks of a rank in a small step", "us", versions)
    table.value("all hooks", [_hooks() for _ in range(turns)], at_most=MOST)
    yield table


def _hooks() -> float:
    """Return the seconds that the hooks take of a step."""
    command = [sys.executable, str(SUBJECTS / "steps.py"), "8", "300"]
    return 1e-6 * float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def _ours(name: str) -> float:
    job = distdl_jupyter.submit(training.train, training.SIZES[name], distributed_backend="torch")
    return float(job.results(timeout=300)[0])


def _plain(name: str) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port", str(free_port())]
    done = subprocess.run(
        [*command, str(SUBJECTS / "training.py"), name], check=True, capture_output=True, text=True, timeout=300
    )
    return float(done.stdout.rpartition("seconds a step:")[2])


if __name__ == "__main__":
    report.main(measure, turns=7)

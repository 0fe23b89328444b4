"""What measuring the time of steps (``Job.time``) costs a training loop, beside the same loop without the hooks.

``python -m tests.benchmarks.step_time_cost``. One rank, DistributedDataParallel over Gloo, each turn in a process of
its own; the times are the training thread's own processor time. The small step shows the cost itself; of a step of
10 ms it must be under 1 %.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from tests.benchmarks import report
from tests.benchmarks.launchers import SUBJECTS
from tests.benchmarks.report import Report, interleaved

#: Width of the network and number of steps: some 0.2 ms, some 10 ms.
SIZES = {"a small step": (8, 3000), "a step of 10 ms": (1750, 100)}
MOST = 100e-6


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    table = Report("The time of steps is measured, a step", "us", report.versions("distdl-jupyter", "torch"))
    for name, (width, steps) in SIZES.items():
        times = interleaved({hooks: partial(_seconds, width, steps, hooks) for hooks in (1, 0)}, turns, warm_up=False)
        table.compare(name, times[1], "not measured", times[0])
        if name == "a small step":
            cost = statistics.median(times[1]) - statistics.median(times[0])
            table.value("the hooks, a step: 1 % of 10 ms", [cost], at_most=1e6 * MOST)
    yield table


def _seconds(width: int, steps: int, hooks: int) -> float:
    command = [sys.executable, str(SUBJECTS / "steps.py"), str(width), str(steps), str(hooks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)


if __name__ == "__main__":
    report.main(measure, turns=7)

"""What a kernel pays once: loading the magics and the first job, in seconds of processor.

``python -m tests.benchmarks.first_use``. Each measurement is a process that has imported what every kernel has. The
seconds are those of the process itself, because they tell more on a busy machine than a clock does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.launchers import workplace
from tests.benchmarks.peers import Unavailable, environment
from tests.benchmarks.report import Report

GOAL_MS = 100
#: Prints the seconds of the first job of a kernel, and of the second.
JOBS = """
import time
import ipykernel.kernelapp
import distdl_jupyter
def train():
    return 1
def submitted():
    begun = time.process_time()
    jobs.append(distdl_jupyter.submit(train, process_count_per_node=2, distributed_backend="torch"))
    return time.process_time() - begun
jobs = []
print(submitted(), submitted())
for job in jobs:
    job.wait()
"""
MAGICS = """
import time
import ipykernel.kernelapp
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
begun = time.process_time()
import {package}
shell.run_line_magic("load_ext", "{package}")
print(time.process_time() - begun)
"""


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    table = Report(
        "What a kernel pays once, in seconds of processor", "ms", report.versions("distdl-jupyter", "ipykernel")
    )
    with workplace():
        told = [_printed(sys.executable, JOBS, dict(os.environ)) for _ in range(turns)]
        first, later = ([seconds[at] for seconds in told] for at in (0, 1))
        table.value("the first submit()", first, at_most=GOAL_MS)
        table.compare("the first submit()", first, "a later one", later)
        ours = [
            _printed(sys.executable, MAGICS.format(package="distdl_jupyter"), dict(os.environ))[0] for _ in range(turns)
        ]
        table.value("%load_ext distdl_jupyter", ours)
        try:
            peers = environment()
            peers.require("ipyparallel")
        except (Unavailable, SystemExit) as problem:
            table.missing("%load_ext distdl_jupyter", "%load_ext ipyparallel", str(problem))
        else:
            program = MAGICS.format(package="ipyparallel")
            theirs = [_printed(peers.python, program, peers.variables())[0] for _ in range(turns)]
            table.compare("%load_ext distdl_jupyter", ours, "%load_ext ipyparallel", theirs)
    yield table


def _printed(python: str, program: str, variables: dict[str, str]) -> list[float]:
    done = subprocess.run(
        [python, "-c", program], env={**variables, "DISTDL_WARM": "off"}, cwd=Path.home(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


if __name__ == "__main__":
    report.main(measure, turns=7)

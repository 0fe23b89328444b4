"""What it costs the supervisor that metrics are read in what ranks print: 100,000 lines, with the option and without.

``python -m tests.benchmarks.output_metrics``. A rank's lines come through a real pipe into a job's log; measured is the
supervisor's processor time, which a busy machine does not change much. Of lines that hold no metric the reading should
be no more than a twentieth. Lines that do hold some cost what their events cost, as reported ones do.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor.log_reader import LogReader
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.benchmarks import report
from tests.benchmarks.report import Report, interleaved

LINES = 100_000
SPEC = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0)
KINDS = {
    "lines of a log": "2026-11-24 10:00:00 INFO worker: handled request number {} without anything to note here",
    "short lines": "line {}",
    "lines with a mark": "processing step of item {} across the files",
    "lines with a metric": "step {} loss 1.19",
}


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    table = Report(f"{LINES:,} lines of a rank are written to the log", "ms", report.versions("distdl-jupyter"))
    for name, line in KINDS.items():
        with tempfile.NamedTemporaryFile("w") as file:
            file.writelines(f"{line.format(number)}\n" for number in range(LINES))
            file.flush()
            ways = {word: partial(cost, file.name, reads=word == "read") for word in ("read", "not read")}
            times = interleaved(ways, turns)
        goal = 1.05 if "metric" not in name and "mark" not in name else None
        table.compare(name, times["read"], "metrics_from_output=False", times["not read"], at_most=goal)
    yield table


def cost(path: str, *, reads: bool) -> float:
    """Return the seconds of the processor for the lines of a file that another process writes into a pipe."""
    end, begin = os.pipe()
    os.set_blocking(end, False)
    stream = Stream(end, 0, "out")
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(["cat", path], stdout=begin) as writer:
        os.close(begin)
        recorder = EventRecorder(JobFolder(Path(folder)), dataclasses.replace(SPEC, metrics_from_output=reads))
        reader = LogReader([stream], "0" * 12, recorder)
        before = time.process_time()
        while writer.poll() is None:
            reader.run(0.01)
        reader.finish()
        recorder.close()
        taken = time.process_time() - before
        lines = recorder.view.lines
    os.close(end)
    if lines != LINES:
        raise AssertionError(f"{lines} of {LINES} lines were written to the log")
    return taken


if __name__ == "__main__":
    report.main(measure, turns=9)

"""What it costs a training loop that prints 100,000 lines a second on each rank that somebody reads them.

``python -m tests.benchmarks.flood``. Two ranks and four do the same steps and print a thousand lines in each, into a
job's log and into a pipe to ``cat >/dev/null`` for each rank. Theirs twice: with every print written at once
(``python -u``, what a log that is followed needs), and in Python's own blocks of 8 kB, which come late and are lost in
a crash. Measured is the loop itself, by the clock, where a processor that the reader takes is missing too, and in
seconds of the processor, which a busy machine does not change. A run in which a single line is lost, or a rank's lines
are out of order, ends the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import distdl_jupyter
from distdl_jupyter.core import events
from tests.benchmarks import report
from tests.benchmarks.launchers import SUBJECTS, as_in_a_cell, warm, workplace
from tests.benchmarks.report import Report, interleaved
from tests.written import all_written

STEPS = 200
#: Other Python processes run with blocks or without.
PEERS = {"python -u | cat": "1", "python | cat": ""}
Told = list[dict[str, Any]]


def measure(turns: int) -> Iterator[Report]:
    """Yield one table for each number of ranks."""
    with workplace() as (scratch, _), warm("off"):
        for ranks in (2, 4):
            yield flooded(scratch, ranks, turns)


def flooded(scratch: Path, ranks: int, turns: int) -> Report:
    """Return the table of so many ranks."""
    ours = Ours(scratch, ranks)
    ways: dict[str, Callable[[], float]] = {"ours": ours.run}
    busy: dict[str, list[float]] = {peer: [] for peer in PEERS}
    ways |= {peer: partial(piped, scratch, ranks, way, busy[peer]) for peer, way in PEERS.items()}
    times = interleaved(ways, turns)
    table = Report(f"{ranks} ranks print 1,000 lines a step", "s", report.versions("distdl-jupyter"))
    table.compare("the training loop", times["ours"], "python -u | cat", times["python -u | cat"], at_most=1.0)
    table.compare("the training loop", times["ours"], "python | cat", times["python | cat"])
    for peer in PEERS:
        table.compare("its processor, a rank", ours.busy[-turns:], peer, busy[peer][-turns:])
    table.value("lines a second and rank", [STEPS * 1000 / one for one in times["ours"]], unit="lines")
    table.value("a metric's way into the log, the slowest", ours.slowest[-turns:], at_most=1.0)
    table.value("the last line to the end of the job", ours.ending[-turns:])
    table.value("the supervisor's memory at most", ours.memory[-turns:], unit="MB")
    return table


class Ours:
    """Runs it as our job, and keeps of each turn what only a job has."""

    def __init__(self, scratch: Path, ranks: int) -> None:
        self._scratch, self._ranks = scratch, ranks
        self.busy: list[float] = []
        self.slowest: list[float] = []
        self.ending: list[float] = []
        self.memory: list[float] = []

    def run(self) -> float:
        """Return the seconds of the slowest rank's loop."""
        meeting = str(self._scratch / f"ours-{self._ranks}-{len(self.slowest)}")
        job = distdl_jupyter.submit(
            as_in_a_cell("flood.py", "on_ranks"), args=(meeting, self._ranks, STEPS),
            process_count_per_node=self._ranks, distributed_backend="torch",
        )  # fmt: skip
        told: Told = job.results()
        found = all_written(job.folder)
        check(found, self._ranks)
        self.busy.append(max(float(one["busy"]) for one in told))
        self.slowest.append(max(one["t"] - one["values"]["sent"] for one in filter(is_reported, found)))
        self.ending.append((job.view().ended or 0.0) - max(one["ended"] for one in told))
        self.memory.append(told[0]["reader"])
        job.remove()
        return max(float(one["taken"]) for one in told)


def check(found: list[events.Event], ranks: int) -> None:
    """Raise SystemExit unless every line of every rank is there, in its order, and every metric."""
    for rank in range(ranks):
        texts = [one["text"] for one in found if one["type"] == "log" and one["rank"] == rank and not is_open(one)]
        numbers = [int(line.split()[0].split(":")[1]) for text in texts for line in text.split("\n")]
        if numbers != list(range(STEPS * 1000)):
            raise SystemExit(f"Rank {rank} printed {STEPS * 1000} lines, and {len(numbers)} are in the log.")
    if (count := sum(map(is_reported, found))) != ranks * STEPS:
        raise SystemExit(f"{ranks * STEPS} metrics were reported, and {count} are in the log.")


def is_reported(event: events.Event) -> bool:
    """Return whether an event is a metric of ``log()``, and not one that was read in the printed lines."""
    return event["type"] == "metric" and "sent" in event["values"]


def is_open(log: events.Event) -> bool:
    """Say whether a log event shows a line before its end; it comes again whole."""
    return bool(log.get("redraws")) and not log.get("closed")


def piped(scratch: Path, ranks: int, unbuffered: str, busy: list[float]) -> float:
    """Run the ranks as plain processes, each into a ``cat``; return the seconds of the slowest one's loop.

    ``busy`` gets the most seconds of the processor that a rank took.
    """
    meeting = scratch / f"piped-{ranks}-{unbuffered}-{os.urandom(4).hex()}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    begun: list[subprocess.Popen[bytes]] = []
    for rank in range(ranks):
        cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert cat.stdin is not None
        numbers = map(str, (rank, ranks, STEPS))
        command = [sys.executable, str(SUBJECTS / "flood.py"), str(meeting), *numbers]
        begun += [subprocess.Popen(command, stdout=cat.stdin, env=environment), cat]
        cat.stdin.close()
    if any(process.wait(300) for process in begun):
        raise SystemExit("A rank in a pipe failed.")
    told = [json.loads(Path(f"{meeting}-{rank}-told").read_text()) for rank in range(ranks)]
    busy.append(max(float(one["busy"]) for one in told))
    return max(float(one["taken"]) for one in told)


if __name__ == "__main__":
    report.main(measure, turns=5)

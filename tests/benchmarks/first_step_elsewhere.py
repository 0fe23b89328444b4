"""From the call to the first optimizer step beside the launchers of other engines: Spark, Ray, ipyparallel.

``python -m tests.benchmarks.first_step_elsewhere``. Spark's session and Ray are up before the call, as in a notebook
whose earlier cells have started them. ipyparallel is measured from no engines at all, as are our ranks that stay; what
a cell takes on ranks that are up already is in ``ranks_cell``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from distdl_jupyter import ranks
from tests.benchmarks import report
from tests.benchmarks.first_step import called, submitted
from tests.benchmarks.launchers import RANKS, SUBJECTS, Caller, Told, warm, workplace
from tests.benchmarks.peers import environment
from tests.benchmarks.report import Report, interleaved
from tests.benchmarks.warmed import told as said
from tests.benchmarks.warmed import warmed

RANKS_START = "ranks that stay: start and step"
#: The peer's name, how its process calls it, and what it is in a table.
PEERS = {
    "pyspark": ("spark", "TorchDistributor"),
    "ray": ("ray", "Ray Train"),
    "ipyparallel": ("ipyparallel", "ipyparallel, engines and step"),
}


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    peers = environment()
    with workplace() as (scratch, stack):
        told, reasons = Told(scratch), list[str]()
        ways: dict[str, Callable[[], float]] = {
            "warm torch": partial(submitted, "torch", told, reasons),
            "cold torch": partial(submitted, "torch", told),
            RANKS_START: partial(_on_ranks, told),
        }
        for peer, (launcher, title) in PEERS.items():
            if peer not in peers.missing:
                caller = Caller(peers, launcher, scratch)
                stack.callback(caller.close)
                ways[title] = partial(called, caller, told)
        stack.enter_context(warmed([ways["warm torch"]]))
        reasons.clear()
        times = interleaved(ways, turns)
    versions = {**report.versions("distdl-jupyter"), **peers.versions("torch", *PEERS)}
    table = Report("Other engines: from the call to the first optimizer step, 2 ranks", "s", versions)
    for ours in ("warm torch", "cold torch", RANKS_START):
        for peer, (_, title) in PEERS.items():
            if title in times:
                note = said(reasons) if ours == "warm torch" else ""
                table.compare(ours, times[ours], title, times[title], note=note)
            else:
                table.missing(ours, title, peers.missing[peer])
    yield table


def _on_ranks(told: Told) -> float:
    """Start ranks, take the step in their first cell, stop them; return the seconds until the step."""
    code = (SUBJECTS / "first.py").read_text().partition("if __name__")[0]
    with warm("on"):
        began = time.time()
        session = ranks.start(process_count_per_node=RANKS, distributed_backend="torch")
    try:
        session.run(f"{code}\ntrain('torch', {told.ask()!r});").check()
    finally:
        session.stop()
    return told.heard() - began


if __name__ == "__main__":
    report.main(measure, turns=3)

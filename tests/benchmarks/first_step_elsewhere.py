"""From the call to the first optimizer step beside the launchers of other engines: Spark, Ray, ipyparallel.

``python -m tests.benchmarks.first_step_elsewhere``. Spark's session and Ray are up before the call, as in a notebook
whose earlier cells have started them. ipyparallel is measured from no engines at all, against ranks of ours that stay;
what a cell takes on ranks that are up already is in ``ranks_cell``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.benchmarks import report
from tests.benchmarks.first_step import called, submitted
from tests.benchmarks.launchers import Caller, Told, workplace
from tests.benchmarks.peers import environment
from tests.benchmarks.report import Report, interleaved
from tests.benchmarks.warmed import told as said
from tests.benchmarks.warmed import warmed

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
        }
        for peer, (launcher, title) in PEERS.items():
            if peer not in peers.missing:
                caller = Caller(peers, launcher, scratch)
                stack.callback(caller.close)
                ways[title] = partial(called, caller, told)
        stack.enter_context(warmed([ways["warm torch"]]))
        reasons.clear()
        times = interleaved(ways, turns)
    versions = {**report.versions("distdl-jupyter"), **peers.versions()}
    table = Report("Other engines: from the call to the first optimizer step, 2 ranks", "s", versions)
    for ours in ("warm torch", "cold torch"):
        for peer, (_, title) in PEERS.items():
            if title in times:
                note = said(reasons) if ours.startswith("warm") else ""
                table.compare(ours, times[ours], title, times[title], note=note)
            else:
                table.missing(ours, title, peers.missing[peer])
    yield table


if __name__ == "__main__":
    report.main(measure, turns=3)

"""How fast a training runs when all is warm: as our job with ``log()`` in every step, beside plain launchers.

``python -m tests.benchmarks.throughput``. The same script, of two ranks on a small convolutional network, runs under
``torchrun`` and ``horovodrun`` without a report at all. Steps per second of rank 0's median window of 20 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import distdl_jupyter
from tests.benchmarks import report
from tests.benchmarks.launchers import RANKS, SUBJECTS, Told, commands, run, workplace
from tests.benchmarks.peers import Environment, environment
from tests.benchmarks.report import Report, interleaved

SCRIPT = SUBJECTS / "steady.py"
PLAIN = {"torch": "torchrun", "horovod": "horovodrun"}


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    peers = environment()
    with workplace() as (scratch, _):
        told = Told(scratch)
        every = commands(peers, SCRIPT)
        ways: dict[str, Callable[[], float]] = {}
        for backend, peer in PLAIN.items():
            ways[backend] = partial(_ours, backend, told)
            if peer in every:
                ways[peer] = partial(_plain, every[peer][1], backend, peers, told, scratch)
        times = interleaved(ways, turns, warm_up=False)
    versions = {**report.versions("distdl-jupyter"), **peers.versions("torch", "horovod")}
    table = Report("Steady training: steps a second with log() in every step, 2 ranks", "/s", versions)
    for backend, peer in PLAIN.items():
        if peer in times:
            table.compare(backend, times[backend], f"{peer}, no reports", times[peer], at_least=0.99)
        else:
            table.missing(backend, peer, peers.missing[backend])
    yield table


def _variables(backend: str, told: Told, *, log: bool) -> dict[str, str]:
    return {"BENCH_BACKEND": backend, "BENCH_TOLD": told.ask(), "BENCH_LOG": str(int(log))}


def _ours(backend: str, told: Told) -> float:
    job = distdl_jupyter.submit(
        entry_script=SCRIPT.name, source_directory=str(SCRIPT.parent), process_count_per_node=RANKS,
        distributed_backend={"horovod": "horovod-gloo"}.get(backend, backend),
        environment_variables=_variables(backend, told, log=True),
    )  # fmt: skip
    job.result()
    return told.heard()


def _plain(command: list[str], backend: str, peers: Environment, told: Told, scratch: Path) -> float:
    run(command, {**peers.variables(), **_variables(backend, told, log=False)}, scratch)
    return told.heard()


if __name__ == "__main__":
    report.main(measure, turns=5)

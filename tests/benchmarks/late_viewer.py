"""What a viewer who comes late to a job waits for, when the job has printed 1 GB in 10,000,000 lines.

``python -m tests.benchmarks.late_viewer``. Beside ``tail -n 1000`` on the same lines as plain text, which knows neither
ranks nor curves, and beside parsing the job's whole log as JSON, which is the least that reading it all takes. Each
turn opens the job anew; the files are in the operating system's cache.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from distdl_jupyter.core import events, logfile
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.live.job import LiveJob
from distdl_jupyter.live.messages import CurveRequest
from tests.benchmarks import report
from tests.benchmarks.report import Report, interleaved

LINES, BATCH, RANKS = 10_000_000, 200, 2
TAIL, PARSED = "tail -n 1000", "the whole log parsed"


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        job, plain = JobFolder(Path(folder) / "20261121-024912-k3f9x"), Path(folder) / "plain.txt"
        write(job, plain)
        ways: dict[str, Callable[[], None]] = {
            TAIL: partial(_tail, plain),
            PARSED: partial(_parsed, job),
            "state and newest rows": partial(_opened, job),
            "state, rows and curve": partial(_drawn, job),
        }
        times = interleaved(ways, turns)
        size = job.log.stat().st_size
    title = f"A late viewer of a job with {LINES:,} lines ({size / 1e9:.2f} GB)"
    table = Report(title, "s", report.versions("distdl-jupyter"))
    for name in list(ways)[2:]:
        table.compare(name, times[name], TAIL, times[TAIL])
        table.compare(name, times[name], PARSED, times[PARSED])
    yield table


def write(job: JobFolder, plain: Path) -> None:
    """Write a job that has ended, and its lines as plain text."""
    job.path.mkdir()
    spec = JobSpec(
        id=job.id, name="digits", node_count=1, process_count_per_node=RANKS, distributed_backend="torch",
        compute_target="local", source=Source(),
    )  # fmt: skip
    job.spec_file.write_text(spec.dumps())
    chance, t = random.Random(1), 1.8e9
    writer, lines_of_rank, uncounted = events.EventWriter(job.events), dict.fromkeys(map(str, range(RANKS)), 0), 0
    with plain.open("w") as lines:
        for number in range(0, LINES, BATCH):
            t, rank, step = t + 0.02, number // BATCH % RANKS, number // BATCH
            text = "\n".join(f"epoch 7 step {number + k} of rank {rank}" + " loss 0.123456" * 5 for k in range(BATCH))
            lines.write(text + "\n")
            writer.put([_event(t, "log", rank=rank, stream="out", text=text)])
            writer.put([_event(t, "metric", rank=rank, step=step, values={"loss": chance.random()})])
            lines_of_rank[str(rank)] += BATCH
            uncounted += len(text)
            if uncounted > logfile.COUNT_EVERY:
                uncounted, counts = 0, {name: [count, 0] for name, count in lines_of_rank.items()}
                writer.put([_event(t, "count", lines=number + BATCH, counts=counts)])
    writer.put([_event(t, "state", state="completed", reason="")])
    writer.close()


def _event(t: float, type_: str, **fields: object) -> events.Event:
    return {"v": 1, "t": round(t, 3), "type": type_, **fields}


def _tail(plain: Path) -> None:
    subprocess.run(["tail", "-n", "1000", str(plain)], check=True, stdout=subprocess.DEVNULL)


def _parsed(job: JobFolder) -> None:
    for found, _ in logfile.batches(job.log):
        len(found)


def _opened(job: JobFolder) -> None:
    live = LiveJob(job)
    while not live.complete:
        live._step()
    live.state()
    live.log(0)


def _drawn(job: JobFolder) -> None:
    live = LiveJob(job)
    while not live.complete:
        live._step()
    live.state()
    live.log(0)
    live.curve(CurveRequest())


if __name__ == "__main__":
    report.main(measure, turns=2)

"""What a viewer who comes late to a job waits for, when the job has printed 1 GB in 10,000,000 lines.

``python -m tests.benchmarks.late_viewer``. Beside ``tail -n 1000`` on the same lines as plain text, which knows neither
ranks nor curves, and beside parsing the job's whole event log as JSON, which is the least that reading it all takes.
Each turn opens the job anew; the files are in the operating system's cache. With the snapshot that a supervisor keeps,
and without one, as after it was deleted.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from distdl_jupyter.core import events, snapshot
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.follow import Follower
from distdl_jupyter.server.live import LiveJob
from distdl_jupyter.server.messages import CurveWish
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
            "the same, no snapshot": partial(_without_snapshot, job),
        }
        times = interleaved(ways, turns)
        size = job.events.stat().st_size
    title = f"A late viewer of a job with {LINES:,} lines ({size / 1e9:.2f} GB)"
    table = Report(title, "s", report.versions("distdl-jupyter"))
    for name in list(ways)[2:]:
        table.compare(name, times[name], TAIL, times[TAIL])
        table.compare(name, times[name], PARSED, times[PARSED])
    yield table


def write(job: JobFolder, plain: Path) -> None:
    """Write a job that has ended with its snapshot, and its lines as plain text."""
    job.path.mkdir()
    spec = JobSpec(
        id=job.id, name="digits", node_count=1, process_count_per_node=RANKS, distributed_backend="torch",
        compute_target="local", source=Source(),
    )  # fmt: skip
    job.spec_file.write_text(spec.dumps())
    chance, t = random.Random(1), 1.8e9
    writer = events.EventWriter(job.events)
    with plain.open("w") as lines:
        for number in range(0, LINES, BATCH):
            t, rank, step = t + 0.02, number // BATCH % RANKS, number // BATCH
            text = "\n".join(f"epoch 7 step {number + k} of rank {rank}" + " loss 0.123456" * 5 for k in range(BATCH))
            lines.write(text + "\n")
            writer.append(_event(t, rank, "log", stream="out", text=text))
            writer.append(_event(t, rank, "metric", step=step, values={"loss": chance.random()}))
    writer.append(events.encode({"v": 1, "t": t, "type": "state", "state": "completed", "reason": ""}))
    writer.close()
    reader = Follower(job)
    snapshot.write(job, reader.catch_up(), reader.cursor)


def _event(t: float, rank: int, type_: str, **fields: object) -> bytes:
    return events.encode({"v": 1, "t": round(t, 3), "type": type_, "rank": rank, **fields})


def _tail(plain: Path) -> None:
    subprocess.run(["tail", "-n", "1000", str(plain)], check=True, stdout=subprocess.DEVNULL)


def _parsed(job: JobFolder) -> None:
    for found, _ in events.batches(job.events):
        len(found)


def _opened(job: JobFolder) -> None:
    live = LiveJob(job)
    while not live.complete:
        live._step()
    live.state()
    live.log(0)


def _drawn(job: JobFolder) -> None:
    live = LiveJob(job)
    while not (live.complete and live.drawn):
        live._step()
    live.state()
    live.log(0)
    live.curve(CurveWish())


def _without_snapshot(job: JobFolder) -> None:
    kept = job.path / "view.json"
    aside = kept.rename(job.path / "aside.json")
    try:
        _drawn(job)
    finally:
        aside.rename(kept)


if __name__ == "__main__":
    report.main(measure, turns=2)

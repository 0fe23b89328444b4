"""What a viewer who comes late to a job waits for, when the job has printed 100 MB in 1,000,000 lines.

``python tests/benchmarks/late_viewer.py`` prints each as a multiple of parsing the whole file as JSON.
"""

from __future__ import annotations

import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.core import events
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.server.live import KEPT, LiveJob
from distdl_jupyter.server.messages import CurveWish

LINES, BATCH, RANKS = 1_000_000, 50, 2


def main() -> None:
    """Measure and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        job = JobFolder(Path(folder) / "20261121-024912-k3f9x")
        write(job)
        parsing = once(lambda: [len(found) for found, _ in events.batches(job.events)])
        row("the whole file parsed", parsing, parsing)
        live = LiveJob(job)
        row("state, curve and last lines", once(lambda: first_view(live)), parsing)
        row("the whole log folded", once(lambda: until_complete(live)), parsing)
        row("the newest 1,000 rows as a message", once(lambda: live.log(0)), parsing)
        row("changes since a moment ago", once(lambda: live.log(live.mark - 20)), parsing)
        live = LiveJob(job)
        size = memory(lambda: until_complete(live))
        print(f"{'kept of ' + format(KEPT, ',') + ' rows':36} {size / KEPT:10.0f} bytes a row")


def write(job: JobFolder) -> None:
    """Write a job that has ended."""
    job.path.mkdir()
    spec = JobSpec(
        id=job.id, name="digits", node_count=1, process_count_per_node=RANKS, distributed_backend="torch",
        compute_target="local", source=Source(),
    )  # fmt: skip
    job.spec_file.write_text(spec.dumps())
    chance, t = random.Random(1), 1.8e9
    writer = events.EventWriter(job.events)
    for number in range(0, LINES, BATCH):
        t, rank = t + 0.02, number // BATCH % RANKS
        text = "\n".join(f"epoch 7 step {number + k} loss {chance.random():.6f} of rank {rank}" + " " * 40
                         for k in range(BATCH))  # fmt: skip
        head = {"v": 1, "t": round(t, 3), "rank": rank}
        log = {**head, "type": "log", "stream": "out", "text": text}
        metric = {**head, "type": "metric", "step": number, "values": {"loss": chance.random()}}
        writer.append(b"".join(events.encode({"v": 1, "t": head["t"], "type": one["type"], **one})
                               for one in (log, metric)))  # fmt: skip
    writer.append(events.encode({"v": 1, "t": t, "type": "state", "state": "completed", "reason": ""}))
    writer.close()


def first_view(live: LiveJob) -> object:
    while not live.seen:
        live._step()
    return live.state(), live.curve(CurveWish()), live.glimpse()


def until_complete(live: LiveJob) -> LiveJob:
    while live.read() or not live.complete:
        pass
    return live


def once(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def memory(work: Callable[[], object]) -> float:
    tracemalloc.start()
    result = work()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return float(size)


def row(name: str, cost: float, base: float) -> None:
    print(f"{name:36} {cost * 1e3:10.2f} ms {cost / base:10.4f} x")


if __name__ == "__main__":
    main()

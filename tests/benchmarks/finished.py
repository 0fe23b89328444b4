"""Finished jobs for benchmarks: written by a supervisor's own hand, of the sizes that users' jobs have."""

import math
import os
import time
from pathlib import Path

from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore, new_id
from distdl_jupyter.supervisor.recorder import EventRecorder

STEPS, NOTES = 200, 50
CODE = "\n".join(
    f"layer_{n} = torch.nn.Linear({n}, {n + 1})  # one of the lines of a cell that trains" for n in range(60)
)


def jobs(home: Path, many: int) -> JobStore:
    """Return a data directory with so many finished jobs, every 25th of 64 ranks and every 10th failed."""
    store = JobStore(home)
    now = time.time()
    for number in range(many):
        _job(store, number, now - 60 * (many - number))
    return store


def _job(store: JobStore, number: int, created: float) -> None:
    ranks = 64 if number % 25 == 24 else 4
    spec = JobSpec(
        id=new_id(created), name=f"digits {number}", kind="cell", process_count_per_node=ranks, created=created,
        distributed_backend="horovod-gloo", python=os.sys.executable,
        source=Source(code=CODE, notebook="training.ipynb", command="%%distributed -p 4"),
    )  # fmt: skip
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    folder = store.publish(folder)
    recorder = EventRecorder(folder, spec)
    _train(recorder, ranks, failed=number % 10 == 9)
    recorder.close()


def _train(recorder: EventRecorder, ranks: int, *, failed: bool) -> None:
    for phase in ("capture", "stage", "start", "rendezvous", "train"):
        recorder.phase(phase, "4 processes")
    for rank in range(ranks):
        recorder.write("rank", rank=rank, status="started", pid=1000 + rank, host="node-a", node=0, local_rank=rank)
    recorder.state(State.RUNNING)
    for step in range(STEPS):
        recorder.write("metric", rank=0, step=step, values={"loss": math.exp(-step / 50), "accuracy": step / STEPS})
        recorder.write("progress", rank=0, done=step, total=STEPS, unit="steps")
        recorder.write(
            "log", rank=step % ranks, stream="out", text=f"step {step} of {STEPS}\nloss {math.exp(-step / 50)}"
        )
    for note in range(NOTES):
        recorder.note("info", f"Rank {note % ranks} found something out that its user may want to know, number {note}.")
    for rank in range(ranks):
        code = 1 if failed and rank == 0 else 0
        recorder.write("rank", rank=rank, status="ended", code=code)
        recorder.write("result", rank=rank, ok=not code, repr="{'loss': 0.018}", error=_error() if code else None)
    recorder.state(State.FAILED if failed else State.COMPLETED, "Rank 0 raised." if failed else "")


def _error() -> dict[str, object]:
    frames = [{"file": "cell", "line": 7, "function": "train", "kind": "cell", "label": "Cell [7]", "source": []}] * 6
    return {"type": "KeyError", "message": "'label'", "traceback": "Traceback ...\n" * 40, "frames": frames}

"""Finished jobs for tests, written by a supervisor's own hand."""

from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.spec import CodeSource, JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.supervisor.recorder import EventRecorder


def job(number=0, state=State.COMPLETED, *, store=None, steps=5, notes=0, **more):
    """Return the folder of a job that has ended, or lives (its lock is free) where ``state`` is no end."""
    created = more.pop("created", 1_700_000_000.0 + number)
    spec = JobSpec(
        **{"id": create_id(created), "name": f"digits {number}", "created": created, "process_count_per_node": 2,
           "source": CodeSource(notebook="training.ipynb"), **more}
    )  # fmt: skip
    store = store or JobStore()
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    lock = JobLock.acquire(folder.lock)
    folder = store.publish(folder)
    recorder = EventRecorder(folder, spec)
    train(recorder, state, spec.process_count, steps, notes)
    recorder.close()
    lock.release()
    return folder


def train(recorder, state, ranks=2, steps=5, notes=0):
    """Write what a training writes."""
    recorder.record_state(State.RUNNING)
    for rank in range(ranks):
        recorder.write("rank", rank=rank, status="started", pid=7, host="node-a")
    for step in range(steps):
        recorder.write("metric", rank=0, step=step, values={"accuracy": step / (steps - 1), "loss": steps - 1 - step})
        recorder.write("log", rank=0, stream="out", text=f"step {step}")
    for number in range(notes):
        recorder.note("info", f"Rank {number % ranks} has reported something that its user may want to know, {number}.")
    if state.ended:
        recorder.record_state(state, "It was so." if state is not State.COMPLETED else "")

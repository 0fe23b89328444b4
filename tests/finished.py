"""Finished jobs for tests, written by a supervisor's own hand."""

from distdl_jupyter.core.events import JobLock
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore, new_id
from distdl_jupyter.supervisor.recorder import EventRecorder


def job(number=0, state=State.COMPLETED, **more):
    """Return the folder of a job that has ended, or lives (its lock is free) where ``state`` is no end."""
    created = 1_700_000_000.0 + number
    spec = JobSpec(
        **{"id": new_id(created), "name": f"digits {number}", "created": created, "process_count_per_node": 2,
           "source": Source(notebook="training.ipynb"), **more}
    )  # fmt: skip
    store = JobStore()
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    lock = JobLock.acquire(folder.lock)
    folder = store.publish(folder)
    recorder = EventRecorder(folder, spec)
    train(recorder, state)
    recorder.close()
    lock.release()
    return folder


def train(recorder, state):
    """Write what a short training writes."""
    recorder.state(State.RUNNING)
    for rank in range(2):
        recorder.write("rank", rank=rank, status="started", pid=7, host="node-a")
    for step in range(5):
        recorder.write("metric", rank=0, step=step, values={"accuracy": step / 4, "loss": 4 - step})
        recorder.write("log", rank=0, stream="out", text=f"step {step}")
    if state.ended:
        recorder.state(state, "It was so." if state is not State.COMPLETED else "")

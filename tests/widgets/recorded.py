"""Jobs as their events tell them, written with the real writer: what a panel shows is compared with pictures of these.

    python -m tests.widgets.recorded running          prints the job's id, writes on in real time until it is ended
    kinds: running starting canceling failed lost silent completed killed

No process runs behind them: whoever reads the folder cannot tell, because the folder is all there is of a job.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.spec import Captured, CodeSource, JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore, create_id
from distdl_jupyter.worker import report

STEPS = 1200
HOSTS = ("node-a", "node-b")
BEGUN_AFTER = 5.0


def loss(step: float) -> float:
    return 0.07 + 2.23 * math.exp(-((step / 96.3) ** 0.669))


@dataclass
class Recording:
    """A job's folder with its writer; ``t`` is the time that the next event gets."""

    folder: JobFolder
    spec: JobSpec
    lock: JobLock
    writer: EventWriter
    t: float
    step: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(11)
        self._drift = [0.0] * 4

    @property
    def id(self) -> str:
        return self.folder.id

    def event(self, type_: str, after: float = 0.0, **fields: Any) -> None:
        self.t += after
        self.writer.put([{"v": 1, "t": round(self.t, 4), "type": type_, **fields}])

    def line(self, rank: int | None, text: str, stream: str = "out", after: float = 0.0, **more: Any) -> None:
        self.event("log", after, rank=rank, stream=stream if rank is not None else "sys", text=text, **more)

    def close(self) -> None:
        self.writer.close()
        self.lock.release()

    # ---- chapters ----

    def set_up(self, until: str = "train") -> None:
        size = self.spec.process_count
        self.event("state", state="queued", reason="")
        self.event("phase", phase="capture", detail="5 names, 927 kB", seconds=0.1)
        self.event("state", state="preparing", reason="")
        self.event("phase", phase="stage", detail="nothing to copy")
        self.event("state", 0.05, state="starting", reason="")
        self.event("phase", phase="start", detail=f"0 of {size} processes")
        per_node = self.spec.process_count_per_node
        for rank in range(size):
            host = HOSTS[rank // per_node] if self.spec.node_count > 1 else "node-a"
            place = {"node": rank // per_node, "host": host, "local_rank": rank % per_node, "gpu": rank % per_node}
            self.event("rank", rank=rank, status="waiting", **place)
            self.event("rank", 0.1, rank=rank, status="started", pid=(41207 if host == "node-a" else 48213) + rank % 2)
        self.event("phase", phase="start", detail=f"{size} of {size} processes")
        self.event("phase", phase="rendezvous", detail=f"waiting for rank {size - 1}")
        if until == "rendezvous":
            return
        if self.spec.node_count > 1:
            self.line(None, "lab-3: node-a and node-b reached over eno1")
        for rank in range(size):
            self.event("rank", 4.0 / size, rank=rank, status="ready")
        for rank in range(size):
            self.line(rank, "Horovod 0.28.1 gloo, torch 2.13.0")
        self.event("phase", phase="train", detail="")
        self.event("state", state="running", reason="")
        self.line(0, "train 1,437 images, test 360, batch 32 × 4 = 128", after=0.2)
        self.line(size - 1, "UserWarning: lr_scheduler.step() came before optimizer.step()", "err")

    def train(self, until: int, pace: float = 0.0622) -> None:
        """Write the steps up to one, ``pace`` seconds each."""
        while self.step < until:
            self.step += 1
            self.t += pace
            self._one_step()

    def _one_step(self) -> None:
        step, amplitude = self.step, 0.12 * min(1.0, 0.2 + self.step / 90)
        for rank in range(self.spec.process_count):
            self._drift[rank] = 0.94 * self._drift[rank] + 0.25 * self._random.gauss(0, 1)
            if step % 4 == 0:
                value = loss(step) * (1 + amplitude * self._drift[rank])
                values = {"loss": value, "accuracy": 1 - value / 3.35, "lr": 0.04}
                self.event("metric", rank=rank, step=step, values=values)
        if step % 12 == 0:
            epoch = step // 12
            self.line(0, f"epoch {epoch:3d}  loss {loss(step):.4f}  accuracy {1 - loss(step) / 3.35:.3f}")
            self.event("progress", rank=0, done=step, total=STEPS, unit="")
        times = f"{step * 0.062:05.2f}<{(STEPS - step) * 0.062:05.2f}"
        bar = f"{step / 12:.0f}%|{'█' * (step // 120):10s}| {step}/1200 [{times}]"
        self.line(0, bar, "err", redraws=step)

    def fail(self) -> None:
        """Rank 2 raises a KeyError; the others notice."""
        error = key_error(self.t)
        self.line(2, "opening shards/shard-2.npz (360 images)")
        self.event("result", rank=2, ok=False, repr="", error=error)
        self.line(2, "KeyError: 'label'", "err")
        echo = "Horovod has been shut down. This was caused by an exception on one of the ranks."
        for rank in (0, 1):
            text = {"type": "HorovodInternalError", "message": echo, "time": self.t + 0.6, "frames": [], "values": []}
            self.event(
                "result", rank=rank, ok=False, repr="", error={**text, "traceback": f"HorovodInternalError: {echo}"}
            )
        self.event("rank", 0.3, rank=2, status="ended", code=1)
        self.event("stop", by="failure", signal="INT", next="TERM", next_in=5, kill_in=10, remaining=[0, 1, 3])
        self.event("rank", 0.4, rank=0, status="ended", code=1)
        self.event("rank", rank=1, status="ended", code=1)
        self.event("rank", 1.4, rank=3, status="ended", signal="TERM")
        self.event("state", 0.1, state="failed", reason="Rank 2 failed first: KeyError: 'label'.")

    def kill_one(self) -> None:
        """Rank 1 is killed from outside; the other ends because of it."""
        evidence = "The kernel's out-of-memory killer ended a process of this job's control group."
        self.event("rank", 0.1, rank=1, status="ended", signal="KILL", evidence=evidence)
        for rank in range(self.spec.process_count):
            if rank != 1:
                self.event("rank", 0.5, rank=rank, status="ended", signal="TERM")
        self.event("state", 0.1, state="failed", reason="Rank 1 was ended by SIGKILL.")

    def complete(self) -> None:
        for rank in range(self.spec.process_count):
            self.event("result", rank=rank, ok=True, repr="{'test_accuracy': 0.978}")
            self.event("rank", 0.02, rank=rank, status="ended", code=0)
        self.line(0, "test accuracy 0.978 on 360 images")
        self.line(None, "4 ranks exited with code 0")
        self.event("phase", phase="collect", detail="4 values")
        self.event("phase", 0.1, phase="clean", detail="no process left")
        self.event("state", state="completed", reason="")


def show(story: Recording, data: bytes, ranks: tuple[int, ...] = (0,)) -> None:
    """Let ranks have shown a picture, as their supervisor keeps it."""
    form = report.detect_format(data)
    assert form is not None
    number = len(list((story.folder.path / "pictures").glob("*"))) + 1
    file = story.folder.get_picture_path(number, form.name)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    for rank in ranks:
        story.event("picture", rank=rank, number=number, form=form.name, width=form.width, height=form.height)
        story.line(rank, f"[picture {number}: {form.width}×{form.height}]", picture=file.name)


def key_error(t: float) -> dict[str, Any]:
    """What a rank reports of a KeyError in a module beside the notebook, called from the cell's line 11."""
    cell = [
        [9, "for step, batch in enumerate(shard(hvd.rank(), hvd.size())):"],
        [10, "    optimizer.zero_grad()"],
        [11, '    loss = F.cross_entropy(model(batch["image"]), batch["label"])'],
        [12, "    loss.backward(); optimizer.step()"],
        [13, "    log(step=step, loss=loss.item()); progress(step, 1200)"],
    ]
    shards = [[31, "        return self.arrays[key]"]]
    frames = [
        frame("worker", "__main__.py", 12, "main"),
        frame("worker", "rank.py", 88, "run"),
        frame("worker", "payload.py", 41, "cell"),
        frame("cell", "Cell [7] in quickstart.ipynb", 11, "<module>", source=cell, cell=7),
        frame("user", "shards.py", 31, "Batch.__getitem__", source=shards),
    ]
    return {
        "type": "KeyError",
        "message": "'label'",
        "time": t,
        "frames": frames,
        "traceback": "Traceback (most recent call last):\n  Cell [7] in quickstart.ipynb, line 11\nKeyError: 'label'\n",
        "values_at": 3,
        "causes": [],
        "values": [["step", "312"], ["batch", "Batch, keys image, target"], ["loss", "0.412"]],
        "hint": "The keys of `batch` are `image` and `target`.",
    }


def frame(kind: str, label: str, line: int, function: str, **more: Any) -> dict[str, Any]:
    place = {"file": label, "label": label, "line": line, "function": function, "kind": kind}
    return {**place, "cell": None, "source": [], **more}


SPEC = JobSpec(
    id="",
    name="digits",
    node_count=2,
    process_count_per_node=2,
    distributed_backend="horovod-gloo",
    compute_target="lab-3",
    source=CodeSource(notebook="quickstart.ipynb", execution_count=7),
    captured=(Captured(name="digits", kind="value", detail="ndarray 1797 × 64", size=920_000),),
)


def begin(age: float, store: JobStore | None = None, **changes: Any) -> Recording:
    """Make the folder of a job that was created ``age`` seconds ago and hold its lock."""
    store = store or JobStore()
    now = time.time()
    id_ = create_id(now - age)
    spec = replace(SPEC, id=id_, created=now - age, **changes)
    folder = store.prepare(id_)
    lock = JobLock.acquire(folder.lock)
    assert lock is not None
    folder.spec_file.write_text(spec.dumps())
    folder = store.publish(folder)
    return Recording(folder, spec, lock, EventWriter(folder.events), now - age)


def cancel(story: Recording) -> None:
    """Let the user cancel the job; rank 3 still runs."""
    for rank in (0, 1, 2):
        story.event("rank", 0.1, rank=rank, status="ended", code=130)
    story.event("state", state="canceling", reason="")
    story.event("stop", by="user", signal="INT", next="TERM", next_in=5, kill_in=15, remaining=[3])


def lose(story: Recording) -> None:
    reason = "The supervisor ended without a result. No process of the job is left."
    story.event("state", 5, state="lost", reason=reason)


#: Of each kind of job how many seconds ago it was created, what differs in its spec, its last step, and its end.
_LOCAL = {"node_count": 1, "compute_target": "local"}
KINDS: dict[str, tuple[float, dict[str, Any], int, Callable[[Recording], None] | None]] = {
    "starting": (4.1, _LOCAL, 0, None),
    "silent": (30, {**_LOCAL, "distributed_backend": "torch"}, 0, None),
    "running": (744 * 0.0622 + BEGUN_AFTER, {}, 744, None),
    "canceling": (744 * 0.0622 + BEGUN_AFTER, {}, 744, cancel),
    "failed": (60 + 31, {}, 312, Recording.fail),
    "killed": (61, {"node_count": 1}, 200, Recording.kill_one),
    "completed": (90, {}, 1200, Recording.complete),
    "lost": (90, {}, 640, lose),
}


def tell(kind: str, store: JobStore | None = None) -> Recording:
    """Write a job of a kind up to now."""
    age, changes, _, _ = KINDS[kind]
    return write(begin(age, store, **changes), kind)


def write(story: Recording, kind: str) -> Recording:
    """Write what happens in a job of a kind, and return it."""
    _, _, steps, end = KINDS[kind]
    story.set_up("rendezvous" if kind == "starting" else "train")
    story.train(steps)
    if end is not None:
        end(story)
    return story


@contextmanager
def telling(store: JobStore | None = None) -> Iterator[Callable[[str], Recording]]:
    """Give a function that writes a job of a kind up to now; all of them are closed at the end."""
    with ExitStack() as stories:

        def tell_(kind: str) -> Recording:
            return stories.enter_context(closing(tell(kind, store)))

        yield tell_


def main(kind: str) -> None:
    story = tell(kind)
    print(story.id, flush=True)
    if kind == "running":
        while story.step < STEPS:
            story.t = time.time()
            story.train(story.step + 1, 0.0)
            time.sleep(0.0622)
        story.complete()
    elif kind in ("starting", "silent", "canceling"):
        time.sleep(3600)
    story.close()


if __name__ == "__main__":
    main(sys.argv[1])

"""Jobs told as events, for tests of what is shown of them: one training, and the ways in which it can end."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

from distdl_jupyter.core.log import LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.core.view import JobView
from tests.widgets.recorded import key_error

Event = dict[str, Any]
BEGUN = 1795229352.0


def spec_of(**changes: Any) -> JobSpec:
    asked: dict[str, Any] = {
        "id": "20261121-024912-k3f9",
        "name": "digits",
        "node_count": 2,
        "process_count_per_node": 2,
        "distributed_backend": "horovod-gloo",
        "compute_target": "lab-3",
        "created": BEGUN,
        "source": Source(execution_count=7, notebook="quickstart.ipynb"),
    }
    return JobSpec(**{**asked, **changes})


def fold(spec: JobSpec, events: Iterable[Event]) -> tuple[JobView, SeriesBook, LogBook]:
    view, book, log = JobView.of(spec), SeriesBook(), LogBook(spec.process_count)
    for event in events:
        view.apply(event)
        book.apply(event)
        log.apply(event)
    return view, book, log


def event(after: float, type_: str, **fields: Any) -> Event:
    return {"v": 1, "t": BEGUN + after, "type": type_, **fields}


def line(after: float, rank: int | None, text: str, stream: str = "out", **more: Any) -> Event:
    return event(after, "log", rank=rank, stream=stream if rank is not None else "sys", text=text, **more)


def training(steps: int = 1200, every: int = 12, ranks: int = 4) -> Iterator[Event]:
    """A job that starts and trains; 50 steps take 3 s."""
    yield event(0.1, "phase", phase="capture", detail="5 names, 927 kB")
    yield event(1, "phase", phase="train", detail="")
    for rank in range(ranks):
        host = "node-a" if rank < 2 else "node-b"
        yield event(2, "rank", rank=rank, status="ready", node=rank // 2, host=host, pid=48211 + rank, gpu=rank % 2)
    yield event(5, "state", state="running")
    for rank in range(ranks):
        yield line(5, rank, "Horovod 0.28.1 gloo, torch 2.13.0")
    chance = random.Random(11)
    for step in range(0, steps + 1, every):
        for rank in range(ranks):
            loss = (0.07 + 2.23 * math.exp(-((step / 96.3) ** 0.669))) * (1 + 0.05 * chance.gauss(0, 1))
            values = {"loss": loss, "accuracy": 1 - loss * 0.38, "lr": 0.04}
            yield event(5 + 0.06 * step, "metric", rank=rank, step=step, values=values)


def completed() -> Iterator[Event]:
    yield from training()
    for rank, (loss, accuracy) in enumerate([(0.079, 0.984), (0.083, 0.976), (0.080, 0.982), (0.078, 0.982)]):
        yield event(78, "metric", rank=rank, step=1200, values={"loss": loss, "accuracy": accuracy})
    for number, epoch in enumerate((98, 99, 100)):
        yield line(78 + number, 0, f"epoch {epoch:3d}  loss 0.08  accuracy 0.98")
    yield line(81, 0, "test accuracy 0.978 on 360 images")
    yield line(81, None, "4 ranks ended with code 0")
    yield event(81, "state", state="completed", reason="")


def running() -> Iterator[Event]:
    yield from training(744, 8)
    yield line(50, 3, "UserWarning: lr_scheduler.step() came before optimizer.step()", "err")
    yield line(51, 0, " 62%|██████    | 744/1200", "err", redraws=743)
    yield event(52, "progress", rank=0, done=744, total=1200, unit="step")


def failed() -> Iterator[Event]:
    yield from training(312, 8)
    yield event(30, "progress", rank=0, done=312, total=1200, unit="step")
    yield line(30, 2, "opening shards/shard-2.npz (360 images)")
    yield line(31, 2, "KeyError: 'label'", "err")
    error = key_error(BEGUN + 31.2)
    yield event(31.2, "result", rank=2, ok=False, error=error)
    lost = {"type": "HorovodInternalError", "message": "peer gone", "time": BEGUN + 31.8, "traceback": ""}
    for rank in (0, 1):
        yield event(31.8, "result", rank=rank, ok=False, error=lost)
    yield event(33.3, "rank", rank=3, status="ended", signal="TERM")
    yield event(33.4, "state", state="failed", reason="Rank 2 of 4 failed first: KeyError: 'label'")


def killed() -> Iterator[Event]:
    yield from training(100, 8)
    yield event(20, "rank", rank=1, status="ended", signal="KILL", evidence="The kernel's log says: out of memory.")
    yield event(21, "state", state="failed", reason="Rank 1 of 4 failed first: ended by SIGKILL")


def not_launched() -> Iterator[Event]:
    yield event(1, "state", state="starting", reason="")
    yield event(2, "state", state="failed", reason="mpirun could not start: no slots left. Ask for fewer processes.")


def starting() -> Iterator[Event]:
    yield event(0, "state", state="starting", reason="")
    for after, phase, detail in ((0, "capture", "5 names"), (0.1, "stage", ""), (0.2, "start", "2 of 4 processes")):
        yield event(after, "phase", phase=phase, detail=detail)
    yield line(3.7, 0, "hello")


def canceling() -> Iterator[Event]:
    yield from training(200, 8)
    yield event(30, "state", state="canceling", reason="")
    yield event(30, "stop", signal="INT", by="user", next="TERM", next_in=5, remaining=[0, 1, 2, 3])
    for rank in range(3):
        yield event(31, "rank", rank=rank, status="ended", signal="INT")


def canceled() -> Iterator[Event]:
    yield from canceling()
    yield event(33, "state", state="canceled", reason="")


def lost() -> Iterator[Event]:
    yield from training(200, 8)
    yield event(100, "state", state="lost", reason="The supervisor ended without a result.")


STORIES = {
    "completed": completed,
    "running": running,
    "failed": failed,
    "killed": killed,
    "not_launched": not_launched,
    "starting": starting,
    "canceling": canceling,
    "canceled": canceled,
    "lost": lost,
    "queued": lambda: iter([event(0, "state", state="queued", reason="")]),
}

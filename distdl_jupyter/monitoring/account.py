"""What is told of a job: spans with their times, and measures. A pure function of its spec and its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.spec import JobSpec

Value = str | int | float | bool
#: The parts of a job that are told, in order; "queue" is no phase of its own in the events.
PARTS = ("stage", "start", "rendezvous", "train", "collect")
_FAILED = (State.FAILED, State.LOST)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of time, in epoch seconds. The first one of a job is the whole of it, the others lie in it."""

    name: str
    begin: float
    end: float
    attributes: dict[str, Value] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """One number: a count to add, or a value of a distribution."""

    name: str
    kind: Literal["count", "value"]
    unit: str
    number: float


@dataclass(frozen=True, slots=True)
class Account:
    """All that is told of one job. ``shared`` are the attributes of every measure."""

    spans: tuple[Span, ...]
    measures: tuple[Measure, ...]
    shared: dict[str, Value]


def account(spec: JobSpec, events: Iterable[Event]) -> Account:
    """Return what is told of a job that has ended; of one that lives, what is known until its last sign."""
    view = JobView.of(spec)
    left_queue = None
    for event in events:
        if event["type"] in ("metric", "progress"):
            continue  # what users print and measure is theirs
        before = view.state
        view.apply(event)
        if before is State.QUEUED and view.state is not State.QUEUED and left_queue is None:
            left_queue = float(event["t"])
    shared = _shared(spec, view)
    end = view.ended or view.last_sign
    parts = _parts(view, left_queue, end)
    whole = Span("job", view.created, max(end, view.created), {**shared, **_own(spec, view)}, view.state in _FAILED)
    spans = tuple(Span(name, begin, stop, dict(shared), _is_to_blame(name, parts, view)) for name, begin, stop in parts)
    return Account((whole, *spans), tuple(_measures(view, parts)), shared)


def _shared(spec: JobSpec, view: JobView) -> dict[str, Value]:
    return {
        "distdl.cluster.kind": spec.cluster,
        "distdl.backend": spec.distributed_backend,
        "distdl.world_size": spec.process_count,
        "distdl.state": view.state.value,
    }


def _own(spec: JobSpec, view: JobView) -> dict[str, Value]:
    attributes: dict[str, Value] = {"distdl.job.id": spec.id, "distdl.node_count": spec.node_count}
    failure = view.failure if view.state in _FAILED else None
    if failure is not None:
        rank = view.ranks[failure.rank]
        attributes["distdl.failed_rank"] = failure.rank
        attributes["distdl.exit"] = (
            f"SIG{rank.signal}" if rank.signal else str(rank.code) if rank.code is not None else "lost"
        )
    elif view.state is State.COMPLETED:
        attributes["distdl.exit"] = "0"
    return attributes


def _exit(rank: RankView) -> str:
    if rank.signal:
        return f"SIG{rank.signal}"
    return "lost" if rank.code is None else str(rank.code)


def _parts(view: JobView, left_queue: float | None, end: float) -> list[tuple[str, float, float]]:
    """Return name, begin and end of the queue and of each phase that there was."""
    begun = {phase.phase: phase.begun for phase in reversed(view.phases) if phase.begun is not None}
    ends = {phase.phase: phase.begun + phase.seconds if phase.seconds is not None else end
            for phase in view.phases if phase.begun is not None}  # fmt: skip
    # Where the cluster queues jobs they wait in the phase "start"; elsewhere before any phase.
    waits_in_start = left_queue is not None and begun.get("start", left_queue) < left_queue
    queued = begun["start"] if waits_in_start else view.created
    out = left_queue if left_queue is not None else min([*begun.values(), end])
    found = [("queue", queued, max(queued, out))]
    for name in PARTS:
        if name in begun:
            begin = max(begun[name], out) if name == "start" and waits_in_start else begun[name]
            found.append((name, begin, max(begin, ends[name])))
    return sorted(found, key=lambda part: part[1])


def _is_to_blame(name: str, parts: list[tuple[str, float, float]], view: JobView) -> bool:
    """Say whether the job failed in this part: the last one before its results were collected."""
    before = [part for part, _, _ in parts if part != "collect"]
    return view.state in _FAILED and bool(before) and name == before[-1]


def _measures(view: JobView, parts: list[tuple[str, float, float]]) -> Iterable[Measure]:
    took = {name: end - begin for name, begin, end in parts}
    yield Measure("distdl.jobs.submitted", "count", "{job}", 1)
    yield Measure("distdl.jobs.failed", "count", "{job}", int(view.state in _FAILED))
    yield Measure("distdl.job.queue.duration", "value", "s", took["queue"])
    yield Measure("distdl.job.train.duration", "value", "s", took.get("train", 0.0))
    yield Measure("distdl.job.duration", "value", "s", max(0.0, (view.ended or view.last_sign) - view.created))
    if view.staging:
        yield Measure("distdl.job.staged", "count", "By", sum(_brought(one) for one in view.staging))


def _brought(staged: Any) -> int:
    return max(0, int(staged.done) - int(staged.cached))

"""The jobs of ``recorded`` as events in memory, for tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from distdl_jupyter.core.log import FoldedLog
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from tests.widgets.recorded import KINDS, SPEC, Recording, write

Event = dict[str, Any]
BEGUN = 1795229352.0


class Events(list[Event]):
    """The events of a job, as a writer takes them."""

    put = list.extend


def spec_of(**changes: Any) -> JobSpec:
    return replace(SPEC, **{"id": "20261121-024912-k3f9", "created": BEGUN, **changes})


def fold(spec: JobSpec, events: Iterable[Event]) -> tuple[JobView, MetricStore, FoldedLog]:
    view, book, log = JobView.from_spec(spec), MetricStore(), FoldedLog(spec.process_count)
    for event in events:
        view.apply(event)
        book.apply(event)
        log.apply(event)
    return view, book, log


def begin() -> Recording:
    """Return a job on four ranks whose writer holds its events."""
    return Recording(cast("Any", None), spec_of(), cast("Any", None), cast("Any", Events()), BEGUN)


def events(kind: str) -> list[Event]:
    return cast("Events", write(begin(), kind).writer)


def training(steps: int) -> list[Event]:
    """Return the events of a job that has trained so many steps."""
    story = begin()
    story.set_up()
    story.train(steps)
    return cast("Events", story.writer)


def event(after: float, type_: str, **fields: Any) -> Event:
    return {"v": 1, "t": BEGUN + after, "type": type_, **fields}


def line(after: float, rank: int, text: str, stream: str = "out", **more: Any) -> Event:
    return event(after, "log", rank=rank, stream=stream, text=text, **more)


NOT_LAUNCHED = "mpirun could not start: no slots left. Ask for fewer processes."
STORIES: dict[str, Callable[[], list[Event]]] = {
    **{kind: partial(events, kind) for kind in KINDS},
    "queued": lambda: [event(0, "state", state="queued", reason="")],
    "not_launched": lambda: [event(2, "state", state="failed", reason=NOT_LAUNCHED)],
    "canceled": lambda: [*events("canceling"), event(60, "state", state="canceled", reason="")],
}

"""The output of ``distdl show`` for one job, line by line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import collectives, table
from distdl_jupyter.core.humanize import duration, number, processes, ran_and_waited, short_id, shown_state
from distdl_jupyter.views.card import (
    cost_text,
    elsewhere,
    failure_card,
    origin_text,
    rank_status,
    staging_bars,
    staging_node,
    staging_text,
)
from distdl_jupyter.views.curve import label

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from distdl_jupyter.core.failure import RankView
    from distdl_jupyter.core.view import JobView


def lines(view: JobView) -> Iterator[str]:
    """Yield what is known of a job now."""
    now = time.time()
    state = shown_state(view.state, stalled=view.stall is not None)
    yield f"{view.name}  {view.id}  {state}"
    if view.reason:
        yield view.reason
    if text := hint(view):
        yield text
    yield from _troubles(view)
    if view.queue is not None:
        yield f"position {view.queue.place} of {view.queue.of}, {view.queue.why}"
    yield (
        f"{view.compute_target}, {processes(view.node_count, view.process_count_per_node)}, "
        f"{view.distributed_backend}, {ran_and_waited(view.run_time(now), view.waiting_time(now))}"
    )
    if view.price_per_hour is not None:
        yield f"{cost_text(view, now)} ({view.price_source})"
    for bar in staging_bars(view):
        yield f"{bar.source} on {staging_node(bar)}: {staging_text(bar)}"
    for metric in view.metrics.values():
        yield f"{label(view, metric.name)} {number(metric.mean)} at step {number(metric.step)}"
    for rank in view.ranks:
        process = "" if rank.pid is None else f", pid {rank.pid}"
        yield f"rank {rank.rank} on {rank.host or 'this machine'}{process}: {_status(rank, view)}"
    for note in view.notes:
        yield f"{note['level']}: {note['text']}"


def hint(view: JobView) -> str:
    """Return what to do about a failure, "" for nothing."""
    card = failure_card(view)
    return str(card.hint) if card is not None else ""


def ending(view: JobView, known: Collection[str] = ()) -> Iterator[str]:
    """Yield how a job has ended, what to do about a failure, and the warnings that are not ``known`` yet."""
    yield f"{view.name} {view.id} {view.state.value} {view.reason}".rstrip()
    if text := hint(view):
        yield text
    for note in view.notes:
        if note["level"] in ("warning", "error") and note["text"] not in known:
            yield f"{note['level'].capitalize()}: {note['text']}"


def _status(rank: RankView, view: JobView) -> str:
    if rank.status != "ended":
        return "end not recorded" if view.state.ended else rank_status(rank)
    if rank.signal:
        return f"ended by SIG{rank.signal}"
    return "ended" if rank.code is None else f"ended with code {rank.code}"


def _troubles(view: JobView) -> Iterator[str]:
    if text := elsewhere(view):
        yield text
    if view.resumed_from:
        yield f"resumed from the checkpoints of job {origin_text(view)}"
    failed = requeued = 0
    for restart in view.restarts:
        failed, requeued = failed + (not restart.requeued), requeued + restart.requeued
        kind = f"requeue {requeued}" if restart.requeued else f"restart {failed} of {view.max_restarts}"
        yield f"{kind}: {restart.reason}"
    if view.stall is not None and not view.state.ended:
        silence = duration(max(0.0, time.time() - view.stall.since))
        yield f"{view.stall.text} The last progress was {silence} ago."
        if view.stall.collectives:
            yield from table.text(collectives.texts(view.stall.collectives)).splitlines()
        yield f"Show the stack traces: distdl stacks {short_id(view.id)}"

"""The output of ``distdl show`` for one job, line by line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import collectives, humanize
from distdl_jupyter.core.humanize import duration, short_id, size
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.views.card import format_other_host, make_failure_card
from distdl_jupyter.views.job_page import make_rank_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from distdl_jupyter.core.view import JobView, StagingView
    from distdl_jupyter.jobs.client import Job

_STAGING_COLUMNS = ("Data", "Node", "Copied", "Files", "From the cache")


def describe_job(job: Job) -> Iterator[str]:
    """Yield the current state of a job as lines: the text of a saved notebook, further details, and its ranks."""
    reader, now = JobReader(job.folder, curves=True), time.time()
    view = reader.catch_up()
    yield from saved.render_lines(view, reader.curves, reader.spec, view.ranks[0].result or "", now)
    if text := format_other_host(view):
        yield text
    if view.queue is not None:
        position = f"Position {view.queue.position} of {view.queue.of}: " if view.queue.position else ""
        yield f"{position}{view.queue.why}"
    if view.staging:
        yield humanize.format_text([_STAGING_COLUMNS, *map(format_staging_row, view.staging)])
    if view.stall is not None and not view.state.ended:
        yield f"The last progress was {duration(max(0.0, now - view.stall.since))} ago."
        if view.stall.collectives:
            yield humanize.format_text(collectives.build_table(view.stall.collectives))
        yield f"Show the stack traces: distdl stacks {short_id(view.id)}"
    for note in view.notes:
        yield f"{note['level'].capitalize()}: {note['text']}"
    ranks = map(make_rank_row, view.ranks)
    rows = ((str(row.rank), row.host, str(row.pid or ""), row.how or row.status) for row in ranks)
    yield humanize.format_text([("Rank", "Host", "Pid", "State"), *rows])


def format_staging_row(row: StagingView) -> tuple[str, ...]:
    """Return the staging progress of one data source on one node."""
    files = f"{row.files:,} of {row.of:,}"
    return row.source, row.host, f"{size(row.done)} of {size(row.total)}", files, size(row.cached) if row.cached else ""


def describe_end(view: JobView, printed_warnings: Collection[str] = ()) -> Iterator[str]:
    """Yield how a job ended, how to fix a failure, and the warnings that are not in ``printed_warnings``."""
    yield f"{view.name} {view.id} {view.state.value} {view.reason}".rstrip()
    if (card := make_failure_card(view)) is not None and card.hint:
        yield card.hint
    for note in view.notes:
        if note["level"] in ("warning", "error") and note["text"] not in printed_warnings:
            yield f"{note['level'].capitalize()}: {note['text']}"

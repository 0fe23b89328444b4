"""The page of a job in a saved notebook, as HTML and as plain text, for viewers without a kernel, server or network.

The page is smaller than 60 kB without the pictures that ranks have displayed. It shows the job at its last event.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import collectives, humanize
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import printable
from distdl_jupyter.html import curve
from distdl_jupyter.html.page import PAPER, RANK_COLOURS, render, to_data_url
from distdl_jupyter.views.card import find_notice, format_cost, format_origin, make_failure_card
from distdl_jupyter.views.curve import format_label, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.log import FoldedLog, FoldedRow
    from distdl_jupyter.core.series import MetricStore
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView, MetricView, Picture
    from distdl_jupyter.views.card import ErrorFrame, FailureCard, OtherRank

#: A picture that a rank has displayed: its description, its bytes, and their format ("png").
PictureData = tuple["Picture", bytes, str]
_MAX_LINES = 5  #: Maximum number of log lines.
_MAX_METRICS = 8  #: Maximum number of metrics.
_MAX_VALUES = 8  #: Maximum number of variables of a failure.
_MAX_COLLECTIVES = 8  #: Maximum number of rows of collective operations.
_MAX_POINTS = 90  #: Approximate number of points of the curve.
_MAX_WARNINGS = 3  #: Maximum number of warnings in the plain text.


def render_html(
    view: JobView,
    store: MetricStore,
    log: FoldedLog,
    spec: JobSpec,
    result: str = "",
    pictures: Sequence[PictureData] = (),
    *,
    is_removed: bool = False,
) -> str:
    """Return the page of a job in any state.

    ``result`` is the value of rank 0 in short form, or "" if there is none. A removed job has its last known state.
    """
    card = make_failure_card(view)
    rows = _select_rows(log, card)
    failed = _find_failure_row(rows, card)
    metrics = [(format_label(view, metric.name), *format_metric(metric)) for metric in view.metrics.values()]
    return render(
        "job.html",
        PAPER,
        view=view,
        details=[*list_details(view, spec, view.last_sign), *list_time_details(view, view.last_sign)],
        restart=format_restart(view),
        progress=format_progress(view) if view.state is State.RUNNING else "",
        share=min(1.0, max(0.0, view.done / view.total)) if view.done is not None and view.total else None,
        explanation=explain_state(view),
        as_of=format_as_of(view, is_removed=is_removed),
        state=get_display_state(view),
        stall=None if view.state.ended else view.stall,
        collectives=_make_collectives(view),
        card=card,
        failure=None if card is None else _describe_failure(card, view),
        notice=getattr(find_notice(view), "text", ""),
        metrics=metrics[:_MAX_METRICS],
        more_metrics=max(0, len(metrics) - _MAX_METRICS),
        curve=_draw_curve(view, store),
        result=result,
        pictures=[_make_picture(*picture) for picture in pictures],
        lines=[_make_line(row, log, failed) for row in rows],
        saved=_format_saved(view, rows),
    )


def _describe_failure(card: FailureCard, view: JobView) -> dict[str, Any]:
    frame, values = find_relevant_frame(card), card.values[:_MAX_VALUES]
    return {
        "headline": format_headline(card, view),
        "location": format_location(card),
        "reason": str(card.hint) or (view.reason if card.rank is None else ""),
        "frame": frame,
        "lines": [] if frame else str(card.traceback).rstrip().splitlines()[-12:],
        "variables": values,
        "values_title": f"Values at line {frame.line}" if frame else "Values",
        "values_width": min(20, max((len(str(name)) for name, _ in values), default=0)),
        "others": format_other_ranks(card),
    }


def _make_collectives(view: JobView) -> dict[str, Any] | None:
    """Return the table of the ranks' last collective operations before the stall or failure."""
    stall = None if view.state.ended or view.stall is None else view.stall.collectives
    rows = stall or (view.failure.collectives if view.failure else ())
    if not rows:
        return None
    titles, *texts = collectives.build_table(rows[:_MAX_COLLECTIVES])
    return {"titles": titles, "rows": texts, "more": max(0, len(rows) - _MAX_COLLECTIVES)}


def _draw_curve(view: JobView, store: MetricStore) -> dict[str, Any] | None:
    name = next((name for name in view.metrics if store.get(name).count > view.process_count), None)
    if name is None:
        return None
    band = store.get(name).get_band()
    return {
        "address": to_data_url(curve.draw_svg(band, name, points=_MAX_POINTS).encode(), "svg+xml"),
        "caption": summarize(name, band),
        "width": curve.WIDTH,
        "height": curve.HEIGHT,
    }


def _make_picture(picture: Picture, data: bytes, format_: str) -> dict[str, Any]:
    caption = f"picture {picture.number}, {humanize.ranks(sorted(picture.ranks))}, {humanize.clock(picture.t)}"
    return {"address": to_data_url(data, format_), "caption": caption, "width": picture.width, "height": picture.height}


# log lines ------------------------------------------------------------------------------------


def _select_rows(log: FoldedLog, card: FailureCard | None) -> list[FoldedRow]:
    """Return the last lines of the rank that failed first, or of all ranks if that rank has no lines."""
    rank_rows = log.get_rank_rows(card.rank) if card and card.rank is not None else []
    return ([*(rank_rows or log.rows), *([] if rank_rows else log.open_rows.values())])[-_MAX_LINES:]


def _find_failure_row(rows: list[FoldedRow], card: FailureCard | None) -> FoldedRow | None:
    error = card.error_type if card else ""
    return next((row for row in reversed(rows) if error and row.stream == "err" and row.text.startswith(error)), None)


def _make_line(row: FoldedRow, log: FoldedLog, failure: FoldedRow | None) -> dict[str, Any]:
    is_from_all = len(row.lines) == log.process_count > 1
    rank = row.rank if row.rank is not None and not is_from_all else None
    tags = [f"{humanize.TIMES}{humanize.plural(len(row.lines), 'rank')}"] if len(row.lines) > 1 else []
    tags += [humanize.plural(row.redraws, "redraw")] if row.redraws > 1 else []
    return {
        "t": row.t,
        "source": "all" if is_from_all else "" if row.rank is None else row.rank,
        "colour": "" if rank is None else RANK_COLOURS[rank % len(RANK_COLOURS)],
        "text": row.text,
        "tags": tags,
        "has_rank": row.rank is not None,
        "is_error": row.stream == "err" and not row.redraws,
        "is_failure": row is failure,
    }


def _format_saved(view: JobView, rows: list[FoldedRow]) -> str:
    """Return the time of the page and the number of its log lines: ``Saved ..., last 5 of 164 log lines``."""
    saved = f"Saved {humanize.date_and_clock(view.ended or view.last_sign)}"
    lines = sum(max(1, len(row.lines)) for row in rows if row.n >= 0)
    return f"{saved}, last {humanize.count(lines)} of {humanize.plural(view.lines, 'log line')}" if lines else saved


# texts that the page and the plain text share ---------------------------------------------------------

#: States of a job before its ranks have started.
SETTING_UP_STATES = (State.QUEUED, State.PREPARING, State.STARTING)


def list_details(view: JobView, spec: JobSpec, now: float) -> list[str]:
    """Return a job's cell, the job that it continues, and its cluster, size, backend and cost."""
    number = spec.source.execution_count
    entries = [
        "" if number is None else f"cell [{number}]",
        f"continues {format_origin(spec)}" if spec.resumed_from else "",
        view.compute_target,
        humanize.processes(view.node_count, view.process_count_per_node),
        view.distributed_backend,
        format_cost(view, now),
    ]
    return [entry for entry in entries if entry]


def list_time_details(view: JobView, now: float) -> list[str]:
    """Return the elapsed time of a job and, if it failed, its progress."""
    wait_seconds = view.compute_wait(now)
    elapsed = humanize.ran_and_waited(view.compute_run_time(now), wait_seconds)
    progress = format_progress(view).rpartition("%, ")[2] if view.state is State.FAILED else ""
    return [elapsed if wait_seconds else f"ran {elapsed}", f"stopped at {progress}"] if progress else [elapsed]


def format_progress(view: JobView) -> str:
    """Return ``62 %, step 744 of 1,200``, or ``step 744`` if the total is unknown, or "" if no step is known."""
    unit = view.unit or "step"
    if view.done is not None and view.total:
        done, total = humanize.count(view.done), humanize.count(view.total)
        return f"{humanize.percent(view.done, view.total)}, {unit} {done} of {total}"
    if view.done is not None:
        return f"{unit} {humanize.count(view.done)}"
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    return f"step {humanize.count(max(steps))}" if steps else ""


def explain_state(view: JobView) -> str:
    """Return why the job is in its state, or "" if the state needs no explanation."""
    if view.state is State.LOST:
        return f"Last event at {humanize.clock(view.last_sign)}. {view.reason}".rstrip()
    if view.state is State.CANCELING and view.stop is not None:
        signal_text = f"{view.stop.signal} sent, " if view.stop.signal else ""
        active = [rank for rank in view.ranks if rank.status != "ended"]
        return f"{signal_text}{len(active)} of {humanize.plural(view.process_count, 'rank')} still running."
    if view.state is State.CANCELED:
        progress = format_progress(view)
        return view.reason or (f"Canceled at {progress}." if progress else "Canceled before the first step.")
    if view.state not in SETTING_UP_STATES or view.reason or not view.phases:
        return view.reason if view.state in SETTING_UP_STATES else ""
    phase = view.phases[-1]
    return f"{humanize.PHASE_LABELS[phase.phase]}{f': {phase.detail}' if phase.detail else ''}."


def format_as_of(view: JobView, *, is_removed: bool) -> str:
    """Return the date of the page and how to see the current state, or "" for an ended job that still exists."""
    times = f"Submitted {humanize.date_and_clock(view.created)}, shown as of {humanize.clock(view.last_sign)}."
    if is_removed:
        return f"This job was deleted. {times}"
    if view.state.ended:
        return ""
    return f"{times} This page may be out of date: attach({humanize.short_id(view.id)!r}) shows the job now."


def format_restart(view: JobView) -> str:
    """Return ``Restart 1 of 3`` or ``Requeue 2`` with the reason, or "" if the job was never restarted."""
    if not view.restarts:
        return ""
    if view.restarts[-1].requeued:
        title = f"Requeue {view.requeue_count}"
    else:
        count = len(view.restarts) - view.requeue_count
        title = f"Restart {count} of {view.max_restarts}" if count <= view.max_restarts else f"Restart {count}"
    return f"{title}. {view.restarts[-1].reason}".rstrip()


def format_metric(metric: MetricView) -> tuple[str, str, str]:
    """Return the mean, the lowest and the highest value with their ranks; both are "" if all ranks are equal."""
    mean = humanize.number(metric.mean)
    finite = [(value, rank) for rank, value in metric.values.items() if math.isfinite(value)]
    if len(finite) < 2 or min(finite)[0] == max(finite)[0]:
        return mean, "", ""
    low, high = min(finite), max(finite, key=lambda item: (item[0], -item[1]))
    return mean, f"{humanize.number(low[0])} ({low[1]})", f"{humanize.number(high[0])} ({high[1]})"


def format_headline(card: FailureCard, view: JobView) -> tuple[str, str, str]:
    """Return subject, time and error: ("Rank 2 of 4 failed first", "12:04:31", "KeyError: 'label'")."""
    default_subject = "The process failed" if card.rank is not None else "The job failed"
    has_several_ranks = card.rank is not None and view.process_count > 1
    subject = f"Rank {card.rank} of {view.process_count} failed first" if has_several_ranks else default_subject
    return subject, humanize.clock(card.when) if card.when else "", str(card.what)


def find_relevant_frame(card: FailureCard) -> ErrorFrame | None:
    """Return the most relevant frame: the innermost frame of a cell, else of the user's files, else None."""
    user_frames = [frame for frame in card.frames if frame.kind in ("cell", "user")]
    cells = [frame for frame in user_frames if frame.cell is not None]
    return next(reversed(cells or user_frames), None)


def format_location(card: FailureCard) -> str:
    """Return the location of a failure: ``On node-b (pid 48213, GPU 0), in cell [7], line 11.``, or "" if unknown."""
    frame = find_relevant_frame(card)
    parts = [f"on {card.location}"] if card.location else []
    if frame is not None:
        name = f"cell [{frame.cell}]" if frame.cell is not None else str(frame.label)
        parts.append(f"in {name}, line {frame.line}")
    joined = ", ".join(parts)
    return f"{joined[0].upper()}{joined[1:]}." if joined else ""


def format_other_ranks(card: FailureCard) -> str:
    """Return how the other ranks ended: ``ranks 0 and 1: HorovodInternalError after 0.6 s; rank 3: ...``."""
    ranks_by_ending: dict[str, list[OtherRank]] = {}
    for other in card.others:
        ranks_by_ending.setdefault(str(other.what).split(":")[0], []).append(other)
    return "; ".join(
        f"{humanize.ranks([other.rank for other in ranks])}: {ending}"
        f" after {humanize.seconds_taken(max(other.after for other in ranks))}"
        for ending, ranks in ranks_by_ending.items()
    )


# plain text -------------------------------------------------------------------------------------------


def get_display_state(view: JobView) -> str:
    """Return the state of a job as displayed: "stalled" for a running job without progress."""
    return humanize.display_state(view.state, stalled=view.stall is not None)


def render_text(view: JobView, store: MetricStore, spec: JobSpec, result: str = "", *, is_removed: bool = False) -> str:
    """Return the job at its last event as a few lines of plain text, for notebooks and their diffs."""
    warnings = [note["text"] for note in view.notes if note["level"] in ("warning", "error")]
    return "\n".join(
        [
            *render_lines(view, store, spec, result, view.last_sign),
            *(f"Warning: {_join_lines(text)}" for text in warnings[:_MAX_WARNINGS]),
            format_as_of(view, is_removed=is_removed) or f"Live again with %dist_attach {view.id}",
        ]
    )


def render_lines(view: JobView, store: MetricStore, spec: JobSpec, result: str, now: float) -> list[str]:
    """Return the job at the time ``now`` (epoch seconds) as lines of plain text, without its notes."""
    state_name, wait_seconds = humanize.STATE_LABELS[get_display_state(view)], view.compute_wait(now)
    elapsed = humanize.duration(view.compute_run_time(now))
    ending = f"{state_name} after {elapsed}" if view.state.ended else f"{state_name}, {elapsed} so far"
    ending += f", waited {humanize.duration(wait_seconds)}" if wait_seconds else ""
    stall = view.stall.text if view.stall is not None and not view.state.ended else ""
    counts = ((len(view.pictures), "picture"), (view.lines, "log line"))
    return [
        f"{_join_lines(view.name)} {view.id}: {ending}",
        ", ".join(map(_join_lines, [*list_details(view, spec, now), *list_time_details(view, now)[1:]])),
        *map(_join_lines, filter(None, [format_restart(view), *_explain(view), stall])),
        *_render_metrics(view, store),
        *([f"Result of rank 0: {_join_lines(result)}"] if result else []),
        *(humanize.plural(count, noun) for count, noun in counts if count),
    ]


def _explain(view: JobView) -> list[str]:
    card = make_failure_card(view)
    if card is None:
        return [format_progress(view) if view.state is State.RUNNING else explain_state(view)]
    sentence = ", ".join(part for part in format_headline(card, view) if part)
    sentences = [sentence, format_location(card), str(card.hint) or (view.reason if card.rank is None else "")]
    if card.others:
        sentences.append(f"{humanize.plural(len(card.others), 'rank')} ended as a result: {format_other_ranks(card)}.")
    if view.state is State.LOST:
        sentences.append(explain_state(view))
    return sentences


def _render_metrics(view: JobView, store: MetricStore) -> list[str]:
    """Return a line for each metric with its name, sparkline, newest mean, and lowest and highest value."""
    rows = []
    for metric in list(view.metrics.values())[:_MAX_METRICS]:
        mean, low, high = format_metric(metric)
        extent = f"lowest {low}, highest {high}".replace("(", "(rank ") if low else ""
        rows.append((_join_lines(format_label(view, metric.name))[:60], _draw_bars(store, metric.name), mean, extent))
    return humanize.format_text(humanize.WholeRows(rows)).splitlines()


def _draw_bars(store: MetricStore, name: str, width: int = 16) -> str:
    """Return a metric's sparkline of block characters, or blanks if it cannot be drawn."""
    means = [row.mean for row in curve.thin_rows(store.get(name).get_band().rows, width)]
    numbers = [mean for mean in means if mean is not None]
    low, span = min(numbers, default=0.0), max(numbers, default=0.0) - min(numbers, default=0.0)
    if not 1e-9 * abs(low) < span < 1e300:
        return " " * width
    bars = "".join(" " if mean is None else "▁▂▃▄▅▆▇█"[min(7, int(8 * (mean - low) / span))] for mean in means)
    return f"{bars:<{width}}"[:width]


def _join_lines(value: str) -> str:
    return printable(" ".join(value.split()), 300)

"""What a notebook keeps of a job: one static page and one plain text, true without kernel, server or network.

The page is always under 60 kB besides the pictures that ranks have shown. Pure: the moment shown is that of the job's
last sign.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import collectives, humanize
from distdl_jupyter.core.printable import printable
from distdl_jupyter.core.state import PHASES, State
from distdl_jupyter.saved import curve as curves
from distdl_jupyter.saved import words
from distdl_jupyter.saved.pages import PAPER, page
from distdl_jupyter.views.card import failure_card, notice_line, staging_bars, staging_node, staging_share, staging_text
from distdl_jupyter.views.curve import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.log import LogBook, Row
    from distdl_jupyter.core.series import SeriesBook
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView, Phase, Picture
    from distdl_jupyter.views.schema import FailureCard, StackFrame, Stacks

#: A picture that a rank has shown: what is known of it, its bytes, and their form ("png").
ShownPicture = tuple["Picture", bytes, str]

#: Bytes of a page, always.
LIMIT = 60_000
#: Columns of stacks and restarts beyond these are counted.
_COLUMNS, _RESTARTS = 6, 5
#: Warnings in the plain text at most.
_MOST_WARNINGS = 3
_WHY = {"asked": "on request", "stall": "no progress", "hang": "hang timeout", "time": "time limit",
        "failure": "a rank failed"}  # fmt: skip
#: The rank colours darkened, for small letters.
_RANK_INK = ("#09356b", "#793007", "#226f51", "#884497")


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page says: log lines, characters of a text, frames, metrics, points of the curve."""

    lines: int = 5
    characters: int = 300
    frames: int = 12
    metrics: int = 12
    points: int = 180


_DETAILS = (Detail(), Detail(characters=160, frames=6, metrics=8, points=90), Detail(3, 60, 2, 4, 40))


def html(
    view: JobView,
    book: SeriesBook,
    log: LogBook,
    spec: JobSpec,
    result_repr: str = "",
    taken: Stacks | None = None,
    shown: Sequence[ShownPicture] = (),
    *,
    removed: bool = False,
) -> str:
    """Return the page of a job in whatever state it is, at most ``LIMIT`` bytes besides the pictures ``shown``.

    ``result_repr`` is the short text of rank 0's value ("" when there is none), ``taken`` the stacks to show.
    A ``removed`` job is shown with its last known state.
    """
    pictures = [_picture(*one) for one in shown]
    size = sum(len(one["address"]) for one in pictures)
    card = failure_card(view)
    for detail in _DETAILS:
        rows = _tail(log, card, detail)
        failed = _line_of_failure(rows, card)
        drawn = page(
            "job.html",
            PAPER,
            view=view,
            detail=detail,
            facts=[*words.facts(view, spec), *words.took(view)],
            restarts=_restarts(view),
            far=words.progress(view) if view.state is State.RUNNING else "",
            share=min(1.0, max(0.0, view.done / view.total)) if view.done is not None and view.total else None,
            sentence=words.explanation(view),
            as_of=words.as_of(view, removed=removed),
            state=shown_state(view),
            stall=None if view.state.ended else view.stall,
            collectives=_collectives(view, taken, detail),
            card=card,
            failure=None if card is None else _failure(card, view, detail),
            phases=_phases(view) if view.state in words.SETTING_UP else [],
            staging=_staging(view),
            stacks=None if taken is None else _stacks(taken, detail),
            notice=getattr(notice_line(view).notice, "text", ""),
            metrics=_metrics(view, detail),
            curve=_curve(view, book, detail),
            result=result_repr,
            pictures=pictures,
            lines=[_line(row, log, failed) for row in rows],
            saved=_saved(view, log, rows),
        )
        if len(drawn.encode()) - size <= LIMIT:
            break
    return drawn


def _restarts(view: JobView) -> dict[str, Any] | None:
    """Return the restarts with the failure before each, newest first."""
    reasons = [(one.t, one.reason) for one in reversed(view.restarts)]
    more = max(0, len(reasons) - _RESTARTS)
    return {"title": words.restart_title(view), "reasons": reasons[:_RESTARTS], "more": more} if reasons else None


def _failure(card: FailureCard, view: JobView, detail: Detail) -> dict[str, Any]:
    own, shown = words.own_frame(card), card.values[: detail.frames]
    return {
        "headline": words.headline(card, view),
        "where": words.where(card),
        "reason": str(card.hint) or (view.reason if card.rank is None else ""),
        "frames": [
            ("" if not kind else _folded(kind, frames), frames)
            for kind, same in groupby(card.frames[-detail.frames :], lambda frame: _fold(frame.kind))
            for frames in [list(same)]
        ],
        "lines": str(card.traceback).rstrip().splitlines()[-2 * detail.frames :],
        "values_title": f"Values at line {own.line}" if own else "Values",
        "values_width": min(20, max((len(str(name)) for name, _ in shown), default=0)),
        "others": words.others(card),
    }


def _fold(kind: str) -> str:
    """Return what a frame folds with: neighbours of the worker, or of libraries, are one line."""
    return kind if kind in ("worker", "library") else ""


def _folded(kind: str, frames: Sequence[Any]) -> str:
    """Return ``3 frames of torch``: the label of a library's file begins with its package."""
    packages = sorted({str(frame.label).split("/")[0].removesuffix(".py") for frame in frames})
    whose = "the worker" if kind == "worker" else humanize.listing(packages[:3])
    return f"{humanize.plural(len(frames), 'frame')} of {whose}"


def _phases(view: JobView) -> list[dict[str, Any]]:
    """Return the steps of the set-up with their times."""
    known = {phase.phase: phase for phase in view.phases}
    return [_phase(name, known.get(name), view.last_sign) for name in PHASES]


def _phase(name: str, phase: Phase | None, now: float) -> dict[str, Any]:
    about: dict[str, Any] = {"title": humanize.PHASE_WORDS[name], "has_begun": phase is not None}
    if phase is None:
        return about | {"shape": "dashed-ring", "colour": "dim", "is_current": False, "detail": "", "took": ""}
    current = phase.seconds is None
    spent = now - (phase.begun or now) if phase.seconds is None else phase.seconds
    shape, colour = ("arc", "brand") if current else ("tick", "ok")
    return about | {"shape": shape, "colour": colour, "is_current": current, "detail": phase.detail,
                    "took": humanize.seconds_taken(spent)}  # fmt: skip


def _staging(view: JobView) -> list[dict[str, Any]]:
    """Return a bar for each source and node."""
    return [
        {"name": f"{bar.source} · {staging_node(bar)}", "share": staging_share(bar), "text": staging_text(bar)}
        for bar in staging_bars(view)
    ]


def _stacks(taken: Stacks, detail: Detail) -> dict[str, Any]:
    """Return the stacks side by side, those that differ first."""
    more = len(taken.groups) - _COLUMNS
    rest = [f"{humanize.plural(more, 'more group')} of ranks"] if more > 0 else []
    rest += [f"No stack of rank {one.rank}: {one.why}" for one in taken.missing[: 2 * detail.lines]]
    groups = [
        {"ranks": group.ranks, "differs": group.differs, "frames": _stack_frames(group.frames[: 2 * detail.frames])}
        for group in taken.groups[:_COLUMNS]
    ]
    return {"said": f"{humanize.clock(taken.t)}, {_WHY[taken.why]}", "groups": groups, "rest": rest}


def _collectives(view: JobView, taken: Stacks | None, detail: Detail) -> dict[str, Any] | None:
    """Return the table of the ranks' last collective operations: of the stall, the failure or the stacks."""
    failure = view.failure
    stall = None if view.state.ended or view.stall is None else view.stall.collectives
    rows = stall or (failure.collectives if failure else None) or (taken.collectives if taken else ())
    if not rows:
        return None
    return {"titles": collectives.COLUMNS, "rows": [collectives.cells(row) for row in rows[: 2 * detail.lines]],
            "more": max(0, len(rows) - 2 * detail.lines)}  # fmt: skip


def _stack_frames(frames: Sequence[StackFrame]) -> list[tuple[str, list[StackFrame]]]:
    """Return (label, frames): the newest is where it stands, and neighbours of libraries below it fold ("": do not)."""
    found: list[tuple[str, list[StackFrame]]] = [("", list(frames[:1]))]
    for own, group in groupby(frames[1:], lambda frame: frame.kind in ("cell", "user")):
        same = list(group)
        folds = not own and len(same) > 1
        found.append((f"{humanize.plural(len(same), 'frame')} of libraries" if folds else "", same))
    return found


def _metrics(view: JobView, detail: Detail) -> dict[str, Any] | None:
    """Return the newest value of each metric with the lowest and highest rank."""
    rows = [(label(view, one.name), *words.metric(one)) for one in view.metrics.values()]
    return {"rows": rows[: detail.metrics], "more": max(0, len(rows) - detail.metrics)} if rows else None


def _curve(view: JobView, book: SeriesBook, detail: Detail) -> dict[str, Any] | None:
    name = next((name for name in view.metrics if book.count(name) > view.process_count), None)
    if name is None:
        return None
    band = book.band(name)
    drawn = curves.svg(band, name, points=detail.points)
    return {
        "address": address(drawn.encode(), "svg+xml"),
        "says": curves.summary(band, name),
        "width": curves.WIDTH,
        "height": curves.HEIGHT,
    }


def _picture(about: Picture, data: bytes, form: str) -> dict[str, Any]:
    return {"address": address(data, form), "says": caption(about),
            "width": int(about.width), "height": int(about.height)}  # fmt: skip


def address(data: bytes, form: str) -> str:
    """Return a picture as a data URL."""
    return f"data:image/{form};base64,{base64.b64encode(data).decode()}"


def caption(about: Picture) -> str:
    """Return which picture it is: ``picture 3, rank 0, 14:03:02``."""
    return ", ".join([f"picture {about.number}", humanize.rank_spans(sorted(about.ranks)), humanize.clock(about.t)])


# log lines ------------------------------------------------------------------------------------


def _tail(log: LogBook, card: FailureCard | None, detail: Detail) -> list[Row]:
    """Return the last lines: of the rank that failed first when it said something, else of all."""
    own = log.of_rank(card.rank) if card and card.rank is not None else []
    return ([*(own or log.rows), *([] if own else log.open)])[-detail.lines :]


def _line_of_failure(rows: list[Row], card: FailureCard | None) -> Row | None:
    """Return the line in which the error itself was printed."""
    what = card.error_type if card else ""
    said = [row for row in rows if what and row.stream == "err" and row.text.startswith(what)]
    return said[-1] if said else None


def _line(row: Row, log: LogBook, failure: Row | None) -> dict[str, Any]:
    everyone = log.everyone(row)
    own = row.rank if row.rank is not None and not everyone else None
    # How often the line stands for others.
    tags = [f"{humanize.TIMES}{humanize.plural(row.ranks, 'rank')}"] if row.ranks > 1 else []
    tags += [humanize.plural(row.redraws, "redraw")] if row.redraws > 1 else []
    return {
        "t": row.t,
        "who": "all" if everyone else "" if row.rank is None else row.rank,
        "colour": "" if own is None else _RANK_INK[own % len(_RANK_INK)],
        "text": row.text,
        "tags": tags,
        "has_rank": row.rank is not None,
        "is_error": row.stream == "err" and not row.redraws,
        "is_failure": row is failure,
    }


def _saved(view: JobView, log: LogBook, rows: list[Row]) -> str:
    """Return when this was saved, and how much of the log is here: ``Saved ..., last 5 of 164 log lines``."""
    saved = f"Saved {humanize.date_and_clock(view.ended or view.last_sign)}"
    kept = [row for row in rows if row.n >= 0]
    if not kept:
        return saved
    failure = view.failure
    if failure is not None and view.process_count > 1 and all(failure.rank in row.lines for row in kept):
        lines = humanize.plural(len(kept), "line")
        return f"{saved}, last {lines} of rank {failure.rank}, {humanize.count(log.total)} in all ranks"
    said = sum(max(1, row.ranks) for row in kept)
    if said < log.total:
        return f"{saved}, last {humanize.count(said)} of {humanize.plural(log.total, 'log line')}"
    return f"{saved}, with {'all ' if said > 1 else ''}{humanize.plural(said, 'log line')}"


# text -----------------------------------------------------------------------------------------


def shown_state(view: JobView) -> str:
    """Return the state of a job as it is shown."""
    return humanize.shown_state(view.state, stalled=view.stall is not None)


def text(
    view: JobView,
    book: SeriesBook,
    log: LogBook,
    spec: JobSpec,
    result_repr: str = "",
    taken: Stacks | None = None,
    *,
    removed: bool = False,
) -> str:
    """Return the job as some lines of plain text, for terminals and for diffs of notebooks."""
    word, waited = humanize.SHOWN_WORDS[shown_state(view)], view.waiting_time(view.last_sign)
    spent = humanize.duration(view.run_time(view.last_sign))
    ending = f"{word} after {spent}" if view.state.ended else f"{word}, {spent} so far"
    ending += f", waited {humanize.duration(waited)}" if waited else ""
    lines = [
        f"{_plain(view.name)} {view.id}: {ending}",
        ", ".join(_plain(fact) for fact in [*words.facts(view, spec), *words.took(view)[1:]]),
    ]
    lines += map(_plain, filter(None, [_restarted(view), *_why(view), _stall(view, taken)]))
    lines += _metric_lines(view, book)
    warnings = [note["text"] for note in view.notes if note["level"] in ("warning", "error")]
    lines += [f"Warning: {_plain(text)}" for text in warnings[:_MOST_WARNINGS]]
    if result_repr:
        lines.append(f"Result of rank 0: {_plain(result_repr)}")
    counts = ((len(view.pictures), "picture"), (log.total, "log line"))
    lines += [humanize.plural(many, word) for many, word in counts if many]
    lines.append(words.as_of(view, removed=removed) or f"Live again with %dist_attach {view.id}")
    return "\n".join(lines)


def _why(view: JobView) -> list[str]:
    card = failure_card(view)
    if card is None:
        return [words.progress(view) if view.state is State.RUNNING else words.explanation(view)]
    sentence = ", ".join(part for part in words.headline(card, view) if part)
    found = [sentence, words.where(card), str(card.hint) or (view.reason if card.rank is None else "")]
    if card.others:
        found.append(f"{humanize.plural(len(card.others), 'rank')} ended as a result: {words.others(card)}.")
    if view.state is State.LOST:
        found.append(words.explanation(view))
    return found


def _restarted(view: JobView) -> str:
    if not view.restarts:
        return ""
    title, reason = words.restart_title(view), view.restarts[-1].reason
    return f"{title}. {reason}" if reason else title


def _stall(view: JobView, taken: Stacks | None) -> str:
    """Return that the job makes no progress, and where its ranks stood."""
    if view.stall is not None and not view.state.ended:
        return view.stall.text
    if taken is None or not taken.says:
        return ""
    return f"Stacks of {humanize.clock(taken.t)}: {taken.says}. {taken.explanation}".rstrip()


def _metric_lines(view: JobView, book: SeriesBook) -> list[str]:
    """Return name, way, newest mean and extent of each metric, in columns."""
    shown = list(view.metrics.values())[:12]
    names = [_plain(label(view, metric.name))[:60] for metric in shown]
    values = [words.metric(metric) for metric in shown]
    width, digits = max(map(len, names), default=0), max((len(mean) for mean, _, _ in values), default=0)
    return [
        f"{name:<{width}}  {_spark(book, metric.name)}  {mean:>{digits}}{_extent(low, high)}"
        for metric, name, (mean, low, high) in zip(shown, names, values, strict=True)
    ]


def _extent(low: str, high: str) -> str:
    """Return ``lowest 0.078 (rank 3), highest 0.083 (rank 1)``, "" when the ranks agree."""
    return f"  lowest {low}, highest {high}".replace("(", "(rank ") if low else ""


def _spark(book: SeriesBook, name: str, width: int = 16) -> str:
    """Return the way of a metric in one line of block characters, blank where there is nothing to draw."""
    means = [row.mean for row in curves.thin(book.band(name).rows, width)]
    known = [mean for mean in means if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    if not 1e-9 * abs(low) < span < 1e300:
        return " " * width
    bars = "".join(" " if mean is None else "▁▂▃▄▅▆▇█"[min(7, int(8 * (mean - low) / span))] for mean in means)
    return f"{bars:<{width}}"[:width]


def _plain(value: str) -> str:
    return printable(" ".join(value.split()), 300)

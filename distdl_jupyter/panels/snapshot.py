"""What a notebook keeps of a job: one static page and one plain text, true without kernel, server or network.

No script, no link, no style sheet: own colours inline, so that it is readable on any page, light or dark, and always
under 60 kB besides the pictures that ranks have shown. Everything from a job is escaped. Pure: the moment shown is that
of the job's last sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from distdl_jupyter.core import humanize
from distdl_jupyter.core.log import LogBook, Row
from distdl_jupyter.core.printable import printable
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.panels import svgcurve
from distdl_jupyter.panels.markup import (
    BORDER,
    INK,
    INK_2,
    MONO,
    SANS,
    SUNK,
    SURFACE,
    WARN,
    WARN_TINT,
    Html,
    code_in,
    div,
    mono,
    picture,
    span,
)
from distdl_jupyter.panels.markup import text as escape
from distdl_jupyter.panels.pictures import Shown, pictures_part
from distdl_jupyter.panels.snapshot_failure import failure_part, headline, others, where
from distdl_jupyter.panels.snapshot_parts import (
    Detail,
    dotted,
    facts,
    log_lines,
    metric_words,
    metrics_table,
    phases,
    pill,
    progress,
    result_line,
    took,
)
from distdl_jupyter.panels.snapshot_stacks import restarts, restarts_word, stacks_part, stall
from distdl_jupyter.panels.snapshot_staging import staging
from distdl_jupyter.views.card import failure_card, notice_line
from distdl_jupyter.views.schema import FailureCard, Stacks

#: Bytes of a page, always.
LIMIT = 60_000
_DETAILS = (Detail(), Detail(characters=160, frames=6, metrics=8, points=90), Detail(3, 60, 2, 4, 40))
_SETTING_UP = (State.QUEUED, State.PREPARING, State.STARTING)


def html(
    view: JobView,
    book: SeriesBook,
    log: LogBook,
    spec: JobSpec,
    result_repr: str = "",
    taken: Stacks | None = None,
    shown: Sequence[Shown] = (),
) -> str:
    """Return the page of a job in whatever state it is, at most ``LIMIT`` bytes besides the pictures ``shown``.

    ``result_repr`` is the short text of rank 0's value ("" when there is none), ``taken`` the stacks to show.
    """
    pictures = pictures_part(view, shown)
    for detail in _DETAILS:
        page = _page(view, book, log, spec, result_repr, taken, pictures, detail)
        if len(page.encode()) - len(pictures.encode()) <= LIMIT:
            break
    return page


def text(
    view: JobView, book: SeriesBook, log: LogBook, spec: JobSpec, result_repr: str = "", taken: Stacks | None = None
) -> str:
    """Return the job as some lines of plain text, for terminals and for diffs of notebooks."""
    lines = [
        f"{_plain(view.name)} {view.id}: {_ending(view)}",
        ", ".join(_plain(fact) for fact in [*_cell(spec), *facts(view), *took(view)[1:]]),
    ]
    lines += [*_earlier(view), *_why(view), *_standing(view, taken)]
    lines += _metric_lines(view, book)
    if result_repr:
        lines.append(f"Result of rank 0: {_plain(result_repr)}")
    counts = ((len(view.pictures), "picture"), (log.total, "log line"))
    lines += [humanize.plural(many, word) for many, word in counts if many]
    lines.append(f"Live again with %dist_attach {view.id}")
    return "\n".join(lines)


def _page(
    view: JobView,
    book: SeriesBook,
    log: LogBook,
    spec: JobSpec,
    result: str,
    taken: Stacks | None,
    pictures: Html,
    detail: Detail,
) -> Html:
    card = failure_card(view)
    parts = [_header(view, spec), restarts(view, detail), _sentence(view), stall(view, detail)]
    if card is not None:
        parts.append(failure_part(card, view, detail))
    if view.state in _SETTING_UP:
        parts += [_strip(phases(view)), staging(view)]
    parts.append(stacks_part(taken, detail))
    parts += [_notice(view, detail), _middle(view, book, result, detail), pictures]
    rows = _tail(log, card, detail)
    if rows:
        parts.append(log_lines(log, rows, detail, _line_of_failure(rows, card)))
    style = (
        f"border:1px solid {BORDER};border-radius:2px;background:{SURFACE};color:{INK};color-scheme:light;"
        f"font:13px/18px {SANS};text-align:left;max-width:1100px;margin:0;overflow:hidden"
    )
    return div(style, *parts, _footer(view, log, rows))


def _header(view: JobView, spec: JobSpec) -> Html:
    style = f"display:flex;flex-wrap:wrap;align-items:center;gap:4px 8px;padding:8px 12px;background:{SURFACE}"
    return div(
        style,
        pill(view.state),
        span(
            "font-size:15px;line-height:20px;font-weight:600;overflow-wrap:anywhere", Html(" "), escape(view.name, 120)
        ),
        Html(" "),
        mono(view.id, 60, INK_2),
        span("flex:1 1 0", Html(" ")),
        span(f"font-size:12px;color:{INK_2}", dotted([*_cell(spec), *facts(view), *took(view)])),
    )


def _cell(spec: JobSpec) -> list[str]:
    number = spec.source.execution_count
    found = [] if number is None else [f"cell [{number}]"]
    return [*found, f"continues {spec.resumed_from}"] if spec.resumed_from else found


def _sentence(view: JobView) -> Html:
    """Return what a state that is not its own explanation needs: how far, why, since when."""
    if view.state is State.RUNNING:
        return _running(view)
    said = _state_words(view)
    return (
        div(f"padding:0 12px 8px;font-size:12px;color:{INK_2};background:{SURFACE}", escape(said, 300))
        if said
        else Html("")
    )


def _state_words(view: JobView) -> str:
    if view.state is State.LOST:
        return f"{view.reason or 'The supervisor ended without a result.'} Last sign {humanize.clock(view.last_sign)}."
    if view.state is State.CANCELING and view.stop is not None:
        sent = f"{view.stop.signal} sent, " if view.stop.signal else ""
        left = [rank for rank in view.ranks if rank.status != "ended"]
        return f"{sent}{len(left)} of {humanize.plural(view.process_count, 'rank')} still there."
    if view.state is State.CANCELED:
        how_far = progress(view)
        return view.reason or (f"Canceled at {how_far}." if how_far else "Canceled before the first step.")
    return view.reason if view.state in _SETTING_UP else ""


def _running(view: JobView) -> Html:
    far = progress(view)
    if not far:
        return Html("")
    share = min(1.0, max(0.0, view.done / view.total)) if view.done is not None and view.total else None
    bar = div(f"height:4px;width:{100 * share:.0f}%;background:#1976d2") if share is not None else Html("")
    rail = div("height:4px;margin-top:4px;background:#eeeeee", bar) if share is not None else Html("")
    return div(f"padding:0 12px 10px;font-size:12px;background:{SURFACE}", escape(far), rail)


def _notice(view: JobView, detail: Detail) -> Html:
    notice = notice_line(view).notice
    if notice is None:
        return Html("")
    style = f"padding:7px 12px;font-size:12px;border-top:1px solid {BORDER};background:{WARN_TINT};color:{WARN}"
    return div(style, code_in(str(notice.text), detail.characters))


def _middle(view: JobView, book: SeriesBook, result: str, detail: Detail) -> Html:
    """Return curve and metrics side by side, and the result below the metrics."""
    ended = result_line(result) if result else Html("")
    if not view.metrics:
        return _strip(ended) if result else Html("")
    # Beside each other from 740 px on; the edge between them hides behind the card's own when they are not.
    edge = f"border-left:1px solid {BORDER};margin-left:-1px"
    right = div(f"flex:1 1 356px;min-width:0;overflow-x:auto;{edge}", metrics_table(view, detail), ended)
    name = next((name for name in view.metrics if book.count(name) > view.process_count), None)
    if name is None:
        return _strip(right)
    band = book.band(name)
    drawn = picture(
        svgcurve.svg(band, name, points=detail.points), svgcurve.summary(band, name), svgcurve.WIDTH, svgcurve.HEIGHT
    )
    left = div("flex:1 1 384px;max-width:446px;min-width:0;box-sizing:border-box;padding:8px 4px 4px 8px", drawn)
    return div(f"display:flex;flex-wrap:wrap;border-top:1px solid {BORDER};background:{SURFACE}", left, right)


def _strip(inside: Html) -> Html:
    return div(f"border-top:1px solid {BORDER};background:{SURFACE}", inside)


def _tail(log: LogBook, card: FailureCard | None, detail: Detail) -> list[Row]:
    """Return the last lines: of the rank that failed first when it said something, else of all."""
    own = log.of_rank(card.rank) if card and card.rank is not None else []
    return ([*(own or log.rows), *([] if own else log.open)])[-detail.lines :]


def _line_of_failure(rows: list[Row], card: FailureCard | None) -> Row | None:
    """Return the line in which the error itself was printed."""
    what = card.error_type if card else ""
    said = [row for row in rows if what and row.stream == "err" and row.text.startswith(what)]
    return said[-1] if said else None


def _footer(view: JobView, log: LogBook, rows: list[Row]) -> Html:
    small = f"font-size:11px;line-height:16px;color:{INK_2}"
    moment = humanize.date_and_clock(view.ended or view.last_sign)
    alive = "" if view.state.ended else " while the job went on"
    saved_lines = _lines_said(view, log, rows)
    saved = Html(f"Saved {moment}{alive}{saved_lines}. Live again with ")
    attach = span(f"white-space:nowrap;font:11px/16px {MONO}", escape(f"%dist_attach {view.id}", 80))
    return div(f"border-top:1px solid {BORDER};padding:6px 12px;background:{SUNK};{small}", saved, attach)


def _lines_said(view: JobView, log: LogBook, rows: list[Row]) -> str:
    """Return how much of the log is here: ``, last 5 of 164 log lines``."""
    kept = [row for row in rows if row.n >= 0]
    if not kept:
        return ""
    failure = view.failure
    if failure is not None and view.process_count > 1 and all(failure.rank in row.lines for row in kept):
        lines = humanize.plural(len(kept), "line")
        return f", last {lines} of rank {failure.rank}, {humanize.count(log.total)} in all ranks"
    said = sum(max(1, row.ranks) for row in kept)
    if said == log.total:
        return (
            f", with {humanize.plural(said, 'log line')}"
            if said == 1
            else f", with all {humanize.count(said)} log lines"
        )
    return f", last {humanize.count(said)} of {humanize.plural(log.total, 'log line')}"


def _ending(view: JobView) -> str:
    word, spent = humanize.STATE_WORDS[view.state], humanize.duration(view.elapsed(view.last_sign))
    return f"{word} after {spent}" if view.state.ended else f"{word}, {spent} so far"


def _why(view: JobView) -> list[str]:
    card = failure_card(view)
    if card is None:
        said = progress(view) if view.state is State.RUNNING else _state_words(view)
        return [_plain(said)] if said else []
    sentence = ", ".join(part for part in headline(card, view) if part)
    found = [sentence, where(card), str(card.hint) or (view.reason if card.rank is None else "")]
    if card.others:
        found.append(f"{humanize.plural(len(card.others), 'rank')} ended because of it: {others(card)}.")
    return [_plain(line) for line in found if line]


def _earlier(view: JobView) -> list[str]:
    if not view.restarts:
        return []
    reason = view.restarts[-1].reason
    return [_plain(f"{restarts_word(view)}. {reason}" if reason else restarts_word(view))]


def _standing(view: JobView, taken: Stacks | None) -> list[str]:
    """Return that the job makes no progress, and where its ranks stood."""
    if view.stall is not None and not view.state.ended:
        return [_plain(view.stall.text)]
    if taken is not None and taken.says:
        return [_plain(f"Stacks of {humanize.clock(taken.t)}: {taken.says}.")]
    return []


def _metric_lines(view: JobView, book: SeriesBook) -> list[str]:
    """Return name, way, newest mean and extent of each metric, in columns."""
    shown = list(view.metrics.values())[:12]
    names = [_plain(metric.name)[:40] for metric in shown]
    values = [metric_words(metric) for metric in shown]
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
    means = [row.mean for row in svgcurve.thin(book.band(name).rows, width)]
    known = [mean for mean in means if mean is not None]
    low, span_ = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    if not 1e-9 * abs(low) < span_ < 1e300:
        return " " * width
    bars = "".join(" " if mean is None else "▁▂▃▄▅▆▇█"[min(7, int(8 * (mean - low) / span_))] for mean in means)
    return f"{bars:<{width}}"[:width]


def _plain(value: str) -> str:
    return printable(" ".join(value.split()), 300)

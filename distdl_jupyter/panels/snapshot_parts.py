"""The parts of a job's static page: state, place, metrics, log lines, phases. Text in, safe markup out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from distdl_jupyter.core import humanize
from distdl_jupyter.core.log import LogBook, Row
from distdl_jupyter.core.state import PHASES, State
from distdl_jupyter.core.view import JobView, MetricView, PhaseView
from distdl_jupyter.panels.markup import (
    BORDER,
    BORDER_2,
    BRAND,
    BRAND_TINT,
    ERR,
    ERR_MARK,
    ERR_TINT,
    INK,
    INK_2,
    MONO_12,
    OK,
    OK_TINT,
    RANK_INK,
    SANS,
    SURFACE,
    WARN,
    WARN_MARK,
    WARN_TINT,
    Html,
    div,
    el,
    join,
    mono,
    span,
    text,
)
from distdl_jupyter.views.card import cost_text


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page says: log lines, characters of a text, frames, metrics, points of the curve."""

    lines: int = 5
    characters: int = 300
    frames: int = 12
    metrics: int = 12
    points: int = 180


#: Colours of each state: text and ground.
_LOOKS: dict[State, tuple[str, str]] = {
    State.QUEUED: (INK_2, "#f0f0f0"),
    State.PREPARING: (BRAND, BRAND_TINT),
    State.STARTING: (BRAND, BRAND_TINT),
    State.RUNNING: (BRAND, BRAND_TINT),
    State.CANCELING: (INK, "#eeeeee"),
    State.COMPLETED: (OK, OK_TINT),
    State.FAILED: (ERR, ERR_TINT),
    State.CANCELED: (INK, "#eeeeee"),
    State.LOST: (WARN, WARN_TINT),
}
_RING = '<circle cx="8" cy="8" r="5.75"/>'
#: The shapes of core.humanize.STATE_SHAPES, 16 x 16, drawn in the colour of the text.
_SHAPES: dict[str, str] = {
    "dashed-ring": '<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.2 2.5"/>',
    "arc": '<circle cx="8" cy="8" r="5.5" opacity=".35"/><path d="M8 2.5a5.5 5.5 0 0 1 5.5 5.5"/>',
    "disc": '<circle cx="8" cy="8" r="5.5" opacity=".45"/>'
    '<circle cx="8" cy="8" r="3" fill="currentColor" stroke="none"/>',
    "slashed-ring": f'{_RING}<path d="M4 12l8-8"/>',
    "tick": f'{_RING}<path d="M5.4 8.3l1.8 1.8 3.4-3.9"/>',
    "cross": '<circle cx="8" cy="8" r="6.5" fill="currentColor" stroke="none"/>'
    '<path d="M5.7 5.7l4.6 4.6m0-4.6l-4.6 4.6" stroke="#fff"/>',
    "question": f'{_RING}<path d="M6.3 6.5c.1-2.3 3.5-2.2 3.4 0-.1 1.2-1.7 1.2-1.7 2.5m0 2.1v.1"/>',
}


def shape(name: str, size: int = 14) -> Html:
    """Return the shape of a state as a small picture; the word beside it says the same."""
    box = 'viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5" aria-hidden="true"'
    style = "display:block;flex:none"
    return Html(
        f'<svg width="{size}" height="{size}" {box} stroke-linecap="round" style="{style}">{_SHAPES[name]}</svg>'
    )


def pill(state: State) -> Html:
    """Return a state: shape, word and colour."""
    ink, ground = _LOOKS[state]
    style = (
        f"display:inline-flex;align-items:center;gap:6px;height:22px;padding:0 9px 0 7px;border-radius:11px;"
        f"font-weight:600;font-size:12px;white-space:nowrap;color:{ink};background:{ground}"
    )
    return span(style, shape(humanize.STATE_SHAPES[state]), Html(humanize.STATE_WORDS[state]))


def dotted(parts: Iterable[str]) -> Html:
    """Return facts in one line with dots between them."""
    return Html(" · ".join(text(part, 60) for part in parts if part))


def facts(view: JobView) -> list[str]:
    """Return where a job runs, how large it is, and with what."""
    return [
        view.compute_target,
        humanize.processes(view.node_count, view.process_count_per_node),
        view.distributed_backend,
        *filter(None, [cost_text(view, view.last_sign)]),
    ]


def took(view: JobView) -> list[str]:
    """Return how long a job took so far and, when it failed, how far it came."""
    spent = humanize.duration(view.elapsed(view.last_sign))
    far = progress(view).rpartition("%, ")[2] if view.state is State.FAILED else ""
    return [f"ran {spent}", f"stopped at {far}"] if far else [spent]


def progress(view: JobView) -> str:
    """Return ``62 %, step 744 of 1,200``, or ``step 744`` without a known total, "" without either."""
    unit = view.unit or "step"
    if view.done is not None and view.total:
        done, total = humanize.count(view.done), humanize.count(view.total)
        return f"{humanize.percent(view.done, view.total)}, {unit} {done} of {total}"
    if view.done is not None:
        return f"{unit} {humanize.count(view.done)}"
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    return f"step {humanize.count(max(steps))}" if steps else ""


def metric_words(metric: MetricView) -> tuple[str, str, str]:
    """Return mean, lowest with its rank and highest with its rank; the last two "" when all ranks agree."""
    mean = humanize.number(metric.mean)
    finite = [(value, rank) for rank, value in metric.values.items() if math.isfinite(value)]
    if len(finite) < 2 or min(finite)[0] == max(finite)[0]:
        return mean, "", ""
    low, high = min(finite), max(finite, key=lambda item: (item[0], -item[1]))
    return mean, f"{humanize.number(low[0])} ({low[1]})", f"{humanize.number(high[0])} ({high[1]})"


_CELL = f"padding:4px 12px;border:0;border-bottom:1px solid {BORDER_2};background:{SURFACE};white-space:nowrap"
_HEAD = f"{_CELL};font-weight:400;font-size:11px;line-height:16px;color:{INK_2};border-bottom:1px solid {BORDER}"
_RIGHT = ";text-align:right;font-variant-numeric:tabular-nums"


def metrics_table(view: JobView, detail: Detail) -> Html:
    """Return the newest value of each metric with the lowest and highest rank."""
    shown = list(view.metrics.values())[: detail.metrics]
    title = "Final metrics" if view.state.ended else "Metrics so far"
    titles = (title, "mean", "lowest (rank)", "highest (rank)")
    head = join(
        el("th", f"{_HEAD};text-align:left" if at == 0 else _HEAD + _RIGHT, Html(t)) for at, t in enumerate(titles)
    )
    body = join(_metric_row(metric) for metric in shown)
    more = len(view.metrics) - len(shown)
    rest = (
        div(f"padding:4px 12px;font-size:12px;color:{INK_2}", Html(f"and {humanize.plural(more, 'more metric')}"))
        if more > 0
        else Html("")
    )
    style = f"border-collapse:collapse;border:0;width:100%;margin:0;table-layout:auto;font:12px/18px {SANS};color:{INK}"
    row = f"background:{SURFACE}"
    return join([el("table", style, el("thead", "", el("tr", row, head)), el("tbody", "", body)), rest])


def _metric_row(metric: MetricView) -> Html:
    mean, low, high = metric_words(metric)
    cells = [
        el(
            "td",
            f"{_CELL};text-align:left;white-space:normal;overflow-wrap:anywhere;color:{INK}",
            text(metric.name, 40),
        ),
        el("td", f"{_CELL}{_RIGHT};color:{INK};font-weight:600", Html(mean)),
        el("td", f"{_CELL}{_RIGHT};color:{INK_2}", Html(low)),
        el("td", f"{_CELL}{_RIGHT};color:{INK_2}", Html(high)),
    ]
    return el("tr", f"background:{SURFACE}", *cells)


def log_lines(log: LogBook, rows: list[Row], detail: Detail, bad: Row | None = None) -> Html:
    """Return log rows: time, rank, stream, text. ``bad`` is the line of the failure."""
    lines = join(_log_line(row, detail, everyone=log.everyone(row), bad=row is bad) for row in rows)
    return div(f"border-top:1px solid {BORDER};padding:6px 0;{MONO_12};color:{INK};background:{SURFACE}", lines)


def _log_line(row: Row, detail: Detail, *, everyone: bool, bad: bool) -> Html:
    error = row.stream == "err" and not row.redraws
    edge, ground = ("transparent", SURFACE)
    if bad or error:
        edge, ground = (ERR_MARK, ERR_TINT) if bad else (WARN_MARK, WARN_TINT)
    who = "all" if everyone else "" if row.rank is None else str(row.rank)
    ink = RANK_INK[row.rank % 4] if row.rank is not None and not everyone else INK
    sign = f"flex:none;width:26px;font:600 11px/18px {SANS};color:{ERR if bad else WARN}"
    body = (
        f"flex:1 1 0;min-width:0;white-space:pre-wrap;overflow-wrap:anywhere;color:{INK_2 if row.rank is None else INK}"
    )
    return div(
        f"display:flex;padding:0 12px 0 9px;border-left:3px solid {edge};background:{ground}",
        span(f"flex:none;width:70px;color:{INK_2}", Html(f"{humanize.clock(row.t)} ")),
        span(f"flex:none;width:32px;font-weight:600;color:{ink}", Html(f"{who} ")),
        span(sign, Html("err " if error else "")),
        span(body, text(row.text, detail.characters), *_tags(row)),
    )


def _tags(row: Row) -> list[Html]:
    """Return how often the line stands for others: ``x4 ranks``, ``743 redraws``."""
    labels = [f"{humanize.TIMES}{humanize.plural(row.ranks, 'rank')}"] if row.ranks > 1 else []
    labels += [humanize.plural(row.redraws, "redraw")] if row.redraws > 1 else []
    edge = f"border:1px solid {BORDER};border-radius:8px;padding:0 6px;margin-left:8px"
    return [span(f"font:600 11px/14px {SANS};color:{INK_2};{edge}", Html(label)) for label in labels]


def phases(view: JobView) -> Html:
    """Return the seven steps of the set-up with their times."""
    known = {phase.phase: phase for phase in view.phases}
    rows = join(_phase(name, known.get(name), view.last_sign) for name in PHASES)
    return div("padding:8px 12px;max-width:460px", rows)


def _phase(name: str, phase: PhaseView | None, now: float) -> Html:
    current = phase is not None and phase.seconds is None
    mark, ink = ("dashed-ring", INK_2) if phase is None else ("arc", BRAND) if current else ("tick", OK)
    weight = "600" if current else "400"
    spent = (
        ""
        if phase is None
        else humanize.seconds_taken(now - (phase.begun or now) if phase.seconds is None else phase.seconds)
    )
    return div(
        "display:flex;gap:6px;align-items:center;padding:2px 0;font-size:12px;line-height:18px",
        span(f"flex:none;color:{ink}", shape(mark)),
        span(
            f"flex:none;width:92px;font-weight:{weight};color:{INK if phase else INK_2}",
            Html(f"{humanize.PHASE_WORDS[name]} "),
        ),
        span(f"flex:1 1 0;min-width:0;color:{INK_2}", text(phase.detail if phase else "", 120)),
        span(f"flex:none;font-weight:{weight};color:{INK_2};font-variant-numeric:tabular-nums", Html(spent)),
    )


def result_line(result: str) -> Html:
    """Return rank 0's value as its ``repr``."""
    style = f"padding:6px 12px;font-size:12px;line-height:18px;color:{INK_2};overflow-wrap:anywhere"
    return div(style, Html("Result of rank 0: "), mono(result, 400))

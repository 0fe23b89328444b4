"""The failure on a job's static page: one sentence, place and hint, the traceback with the cell's line, the others."""

from __future__ import annotations

from itertools import groupby

from distdl_jupyter.core import humanize
from distdl_jupyter.core.view import JobView
from distdl_jupyter.panels.markup import (
    BORDER,
    BORDER_2,
    ERR,
    ERR_EDGE,
    ERR_MARK,
    ERR_TINT,
    INK,
    INK_2,
    MONO_12,
    SANS,
    SUNK,
    SURFACE,
    Html,
    code_in,
    div,
    el,
    join,
    mono,
    span,
    text,
)
from distdl_jupyter.panels.snapshot_parts import Detail, shape
from distdl_jupyter.views.schema import FailureCard, Frame, OtherRank

_PART = f"padding:7px 12px;font-weight:600;line-height:20px;border-bottom:1px solid {BORDER}"
_BAR = f"padding:3px 12px;font:12px/18px {SANS};color:{INK_2};background:{SUNK};border-bottom:1px solid {BORDER_2}"


def headline(card: FailureCard, view: JobView) -> tuple[str, str, str]:
    """Return who failed, when and what: ("Rank 2 of 4 failed first", "12:04:31", "KeyError: 'label'")."""
    alone = "The process failed" if card.rank is not None else "The job failed"
    several = card.rank is not None and view.process_count > 1
    who = f"Rank {card.rank} of {view.process_count} failed first" if several else alone
    return who, humanize.clock(card.when) if card.when else "", str(card.what)


def own_frame(card: FailureCard) -> Frame | None:
    """Return the frame to look at: the deepest of a cell, else the deepest of the user's own files."""
    own = [frame for frame in card.frames if frame.kind in ("cell", "user")]
    cells = [frame for frame in own if frame.cell is not None]
    found: list[Frame] = cells or own
    return found[-1] if found else None


def where(card: FailureCard) -> str:
    """Return the place as a sentence: ``On node-b (pid 48213, GPU 0), in cell [7], line 11``, "" when unknown."""
    frame = own_frame(card)
    parts = [f"on {card.place}"] if card.place else []
    if frame is not None:
        name = f"cell [{frame.cell}]" if frame.cell is not None else str(frame.label)
        parts.append(f"in {name}, line {frame.line}")
    joined = ", ".join(parts)
    return f"{joined[0].upper()}{joined[1:]}." if joined else ""


def others(card: FailureCard) -> str:
    """Return what the other ranks did: ``ranks 0 and 1: HorovodInternalError after 0.6 s; rank 3: ...``."""
    by_kind: dict[str, list[OtherRank]] = {}
    for other in card.others:
        by_kind.setdefault(str(other.what).split(":")[0], []).append(other)
    return "; ".join(
        f"{humanize.ranks([other.rank for other in same])}: {kind}"
        f" after {humanize.seconds_taken(max(other.after for other in same))}"
        for kind, same in by_kind.items()
    )


def failure_part(card: FailureCard, view: JobView, detail: Detail) -> Html:
    """Return everything about the failure."""
    pieces = [_banner(card, view, detail)]
    if card.frames or card.traceback:
        pieces.append(_two_columns(_traceback(card, detail), _side(card, detail)))
    if card.others:
        pieces.append(_others(card, detail))
    return join(pieces)


def _banner(card: FailureCard, view: JobView, detail: Detail) -> Html:
    who, when, what = headline(card, view)
    first = [span("font-weight:600", Html(f"{who}{', ' if when or what else ''}"))]
    first += [Html(f"{when}{', ' if what else ''}")] if when else []
    first += [
        span(
            f"{MONO_12};font-size:14px;font-weight:600;color:{ERR};overflow-wrap:anywhere",
            text(what, detail.characters),
        )
    ]
    reason = card.hint or (view.reason if card.rank is None else "")
    second = join([text(where(card), detail.characters), Html(" "), code_in(str(reason), 2 * detail.characters)])
    lines = div(
        "flex:1 1 0;min-width:0",
        div("font-size:15px;line-height:22px", *first),
        div("font-size:12px;line-height:18px;margin-top:2px", second),
    )
    edges = f"border-top:1px solid {ERR_EDGE};border-bottom:1px solid {ERR_EDGE}"
    style = f"display:flex;gap:10px;padding:10px 12px;background:{ERR_TINT};{edges}"
    return div(style, span(f"color:{ERR_MARK};margin-top:2px", shape("cross", 18)), lines)


def _two_columns(left: Html, right: Html | None) -> Html:
    if right is None:
        return left
    return div(
        f"display:flex;flex-wrap:wrap;background:{SURFACE}",
        div(f"flex:999 1 420px;min-width:0;border-right:1px solid {BORDER}", left),
        div("flex:1 1 220px;min-width:0", right),
    )


def _traceback(card: FailureCard, detail: Detail) -> Html:
    title = "Traceback" if card.rank is None else f"Traceback of rank {card.rank}"
    head = div(
        f"{_PART};display:flex",
        span("flex:1 1 0", Html(f"{title} ")),
        span(f"font-weight:400;font-size:12px;color:{INK_2}", Html("most recent call last")),
    )
    frames = card.frames[-detail.frames :]
    body = [_group(kind, list(same)) for kind, same in groupby(frames, key=_fold)]
    if not frames:
        body = [_raw(str(card.traceback), detail)]
    kind = span(f"font-weight:600;color:{ERR}", text(card.error_type, 80))
    message = f": {card.message}" if card.message else ""
    style = f"{MONO_12};padding:4px 12px 6px;white-space:pre-wrap;overflow-wrap:anywhere"
    last = div(style, kind, text(message, 2 * detail.characters)) if card.error_type else Html("")
    return join([head, *body, last])


def _fold(frame: Frame) -> str:
    """Return what a frame folds with: neighbours of the worker, or of libraries, are one line."""
    return str(frame.kind) if frame.kind in ("worker", "library") else ""


def _group(kind: str, frames: list[Frame]) -> Html:
    if not kind:
        return join(_frame(frame) for frame in frames)
    whose = "the worker" if kind == "worker" else humanize.listing(sorted({_package(frame) for frame in frames})[:3])
    names = join(div("", mono(frame.label, 80, INK_2), *_scope(frame), _line_number(frame)) for frame in frames)
    return _folded(_BAR, text(f"{humanize.plural(len(frames), 'frame')} of {whose}"), names)


def _package(frame: Frame) -> str:
    """Return the package a library's file is of: "torch" for the label ``torch/nn/modules/module.py``."""
    return str(frame.label).split("/")[0].removesuffix(".py")


def _frame(frame: Frame) -> Html:
    in_cell = frame.cell is not None
    name = span(f"color:{INK}", text(frame.label, 80)) if in_cell else mono(frame.label, 80)
    head = div(
        f"{_BAR};display:flex;gap:8px",
        name,
        *([] if in_cell else _scope(frame)),
        span("flex:1 1 0", Html("")),
        _line_number(frame),
    )
    lines = join(_source_line(number, line, hit=number == frame.line) for number, line in frame.source)
    return join([head, div("padding:4px 0", lines)]) if lines else head


def _scope(frame: Frame) -> list[Html]:
    if frame.function in ("", "<module>"):
        return []
    return [span("", Html(" in ")), mono(frame.function, 80, INK_2)]


def _line_number(frame: Frame) -> Html:
    return span("white-space:nowrap", text(f" line {frame.line}", 20))


def _source_line(number: int, line: str, *, hit: bool) -> Html:
    ground, edge = (ERR_TINT, ERR_MARK) if hit else (SURFACE, "transparent")
    return div(
        f"display:flex;{MONO_12};padding:0 12px 0 9px;border-left:3px solid {edge};background:{ground};color:{INK}",
        span(f"flex:none;width:22px;font-weight:700;color:{ERR}", Html("➜ " if hit else "")),
        span(f"flex:none;width:30px;text-align:right;padding-right:8px;color:{INK_2}", text(f"{number} ", 12)),
        span("flex:1 1 0;min-width:0;white-space:pre-wrap;overflow-wrap:anywhere", text(line, 160)),
    )


def _raw(traceback: str, detail: Detail) -> Html:
    """Return a traceback without frames as it stands, its end when it is long."""
    lines = traceback.rstrip().splitlines()[-2 * detail.frames :]
    style = f"{MONO_12};padding:4px 12px;white-space:pre-wrap;overflow-wrap:anywhere"
    return div(style, join(div("", text(line, 160)) for line in lines))


def _side(card: FailureCard, detail: Detail) -> Html | None:
    if not card.values:
        return None
    frame = own_frame(card)
    title = f"Values at line {frame.line}" if frame else "Values"
    shown = card.values[: detail.frames]
    width = min(20, max(len(str(name)) for name, _ in shown))
    column = f"flex:none;{MONO_12};width:{width}ch;color:{INK_2};overflow-wrap:anywhere"
    rows = join(
        div(
            "display:flex;gap:12px",
            span(column, text(name, 30), Html(" ")),
            span("min-width:0;overflow-wrap:anywhere", mono(value, 100)),
        )
        for name, value in shown
    )
    return join([div(_PART, text(title)), div("padding:8px 12px", rows)])


def _others(card: FailureCard, detail: Detail) -> Html:
    shown = card.others[: 4 * detail.frames]
    title = span(
        f"font-weight:600;color:{INK}", Html(f"{humanize.plural(len(card.others), 'rank')} ended because of it ")
    )
    label = join([title, span(f"font-size:12px;color:{INK_2}", text(others(card), detail.characters))])
    each = join(
        div("", text(f"rank {other.rank}: {other.what}, after {humanize.seconds_taken(other.after)}", 160))
        for other in shown
    )
    style = f"padding:7px 12px;background:{SUNK};border-top:1px solid {BORDER};font-size:13px;line-height:18px"
    return _folded(style, label, each)


def _folded(style: str, label: Html, inside: Html) -> Html:
    """Return a line that opens what belongs to it."""
    summary = el("summary", f"cursor:pointer;color:{INK_2}", label)
    return el(
        "details", style, summary, div(f"padding:4px 0 2px 16px;font-size:12px;line-height:18px;color:{INK_2}", inside)
    )

"""On a job's static page: its restarts, that it makes no progress, and where each rank stood."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.panels.markup import (
    BORDER,
    BORDER_2,
    INK,
    INK_2,
    MONO_12,
    SUNK,
    SURFACE,
    WARN,
    WARN_MARK,
    WARN_TINT,
    Html,
    code_in,
    div,
    el,
    join,
    mono,
    span,
    text,
)

if TYPE_CHECKING:
    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.panels.snapshot_parts import Detail
    from distdl_jupyter.views.schema import StackFrame, StackGroup, Stacks

#: Columns and restarts beyond these are counted.
_COLUMNS, _RESTARTS = 6, 5
_WHY = {"asked": "on request", "stall": "no progress", "hang": "hang timeout", "time": "time limit"}


def restarts_word(view: JobView) -> str:
    """Return ``Restart 1 of 3``, "" for a job that was never started anew."""
    count = view.restart_count
    if not count:
        return ""
    return f"Restart {count} of {view.max_restarts}" if count <= view.max_restarts else f"Restart {count}"


def restarts(view: JobView, detail: Detail) -> Html:
    """Return the restarts with the failure before each, newest first."""
    if not view.restarts:
        return Html("")
    shown = list(reversed(view.restarts))[:_RESTARTS]
    last = span(f"color:{INK_2}", Html(" "), text(shown[0].reason, detail.characters)) if shown[0].reason else ""
    head = join([span("font-weight:600", Html(restarts_word(view))), Html(last)])
    style = f"padding:0 12px 8px;font-size:12px;line-height:18px;background:{SURFACE}"
    if len(view.restarts) == 1:
        return div(style, head)
    rows = join(
        div("", Html(f"{humanize.clock(one.t)} "), text(one.reason or "no reason was given", detail.characters))
        for one in shown[1:]
    )
    more = len(view.restarts) - len(shown)
    rest = div("", Html(f"and {humanize.plural(more, 'earlier restart')}")) if more else Html("")
    inside = div(f"padding:2px 0 0 16px;color:{INK_2}", rows, rest)
    return div(style, el("details", "", el("summary", "cursor:pointer", head), inside))


def stall(view: JobView, detail: Detail) -> Html:
    """Return the sentence about a job that makes no progress."""
    if view.stall is None or view.state.ended:
        return Html("")
    style = f"padding:7px 12px;font-size:12px;border-top:1px solid {BORDER};background:{WARN_TINT};color:{WARN}"
    since = span("white-space:nowrap", Html(f" Since {humanize.clock(view.stall.since)}."))
    return div(style, code_in(view.stall.text, 2 * detail.characters), since)


def stacks_part(taken: Stacks | None, detail: Detail) -> Html:
    """Return the stacks side by side, those that differ first; nothing when none were taken."""
    if taken is None:
        return Html("")
    said = f"{humanize.clock(taken.t)}, {_WHY[taken.why]}"
    head = div(
        f"padding:7px 12px;border-top:1px solid {BORDER};border-bottom:1px solid {BORDER};line-height:20px",
        span("font-weight:600", Html("Stacks ")),
        span(f"font-size:12px;color:{INK_2}", Html(said)),
    )
    columns = join(_column(group, detail) for group in taken.groups[:_COLUMNS])
    return join([head, div(f"display:flex;flex-wrap:wrap;background:{SURFACE}", columns), _rest(taken, detail)])


def _rest(taken: Stacks, detail: Detail) -> Html:
    more = len(taken.groups) - _COLUMNS
    lines = [f"{humanize.plural(more, 'more place')} where ranks stand"] if more > 0 else []
    lines += [f"No stack of rank {one.rank}: {one.why}" for one in taken.missing[: 2 * detail.lines]]
    style = f"padding:4px 12px;font-size:12px;line-height:18px;color:{INK_2}"
    return div(style, join(div("", text(line, detail.characters)) for line in lines)) if lines else Html("")


def _column(group: StackGroup, detail: Detail) -> Html:
    ground, edge = (WARN_TINT, WARN_MARK) if group.differs else (SUNK, "transparent")
    tag = span(f"font-size:11px;font-weight:600;color:{WARN}", Html(" differs")) if group.differs else Html("")
    name = span("font-weight:600", text(humanize.rank_spans(group.ranks), 120))
    head = div(f"padding:5px 12px;background:{ground};border-bottom:1px solid {BORDER_2}", name, tag)
    shown = group.frames[: 2 * detail.frames]
    # The newest frame is where it stands; neighbours of libraries below it fold.
    frames = [_frame(frame, ground) for frame in shown[:1]]
    frames += [_fold(own, list(same), ground) for own, same in groupby(shown[1:], key=_own)]
    style = f"flex:1 1 280px;min-width:0;border-left:3px solid {edge};font-size:12px;line-height:18px"
    return div(style, head, *frames)


def _own(frame: StackFrame) -> bool:
    return frame.kind in ("cell", "user")


def _fold(own: bool, frames: list[StackFrame], ground: str) -> Html:  # noqa: FBT001 - groupby gives it
    if own or len(frames) == 1:
        return join(_frame(frame, ground) for frame in frames)
    label = Html(f"{humanize.plural(len(frames), 'frame')} of libraries")
    summary = el("summary", f"cursor:pointer;padding:3px 12px;color:{INK_2}", label)
    return el("details", "", summary, join(_frame(frame, ground) for frame in frames))


def _frame(frame: StackFrame, ground: str) -> Html:
    own = _own(frame)
    place = f"{frame.label or frame.file}, line {frame.line}" if frame.line else frame.label or frame.file
    line = div(
        f"padding:2px 12px;overflow-wrap:anywhere;background:{ground if own else SURFACE}",
        mono(frame.function or "?", 60, INK if own else INK_2),
        span(f"color:{INK_2}", Html("  "), text(place, 80)),
    )
    if not own or not frame.source:
        return line
    code = f"{MONO_12};padding:2px 12px 4px 24px;white-space:pre-wrap;overflow-wrap:anywhere;color:{INK}"
    return join([line, div(code, text(frame.source.strip(), 160))])

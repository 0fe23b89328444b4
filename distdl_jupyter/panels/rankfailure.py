"""How a cell failed on its ranks, as HTML: who failed first and where, the traceback, the others folded under it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import dropwhile
from typing import Any

from distdl_jupyter.core import humanize
from distdl_jupyter.panels.markup import Html, div, el, join, span, text
from distdl_jupyter.panels.rankstyle import BASE, DIM, ERR, ERR_EDGE, ERR_TINT, GROUND, LINE, MONO, SMALL, SUNK, TEXT
from distdl_jupyter.ranks.view import named
from distdl_jupyter.ranks.viewerrors import Failures, what

_FRAMES = 12
_CHARACTERS = 400


def part(failed: Failures) -> Html:
    """Return the failure; one line when an interrupt is all that happened."""
    if failed.interrupted:
        return div(f"{SMALL};padding:4px 12px 4px 9px;color:{DIM}", Html(escape(failed.sentence())))
    pieces = [_headline(failed), _traceback(failed.error), *([_others(failed)] if failed.rest() else [])]
    return div(f"border-top:1px solid {LINE};border-bottom:1px solid {LINE}", *pieces, role="alert")


def _headline(failed: Failures) -> Html:
    kind = span(f"{MONO};font-size:13px;font-weight:600;color:{ERR};overflow-wrap:anywhere", _what(failed.error))
    first = div("", span("font-weight:600", Html(f"✗ {escape(failed.who)}: ")), kind)
    hint = _code_in(str(failed.error.get("hint", "")))
    place = f"In {failed.where}. " if failed.where else ""
    second = div(f"{SMALL};color:{DIM}", text(place, _CHARACTERS), hint)
    style = f"{BASE};padding:7px 12px 7px 9px;border-left:3px solid {ERR_EDGE};background:{ERR_TINT};color:{TEXT}"
    return div(style, first, second)


def _code_in(sentence: str) -> Html:
    """Return a sentence in which `names` between backticks are set as code."""
    parts = sentence[: 2 * _CHARACTERS].split("`")
    return join(span(f"{MONO};color:{TEXT}", text(p)) if at % 2 else text(p, 800) for at, p in enumerate(parts))


def _what(error: Mapping[str, Any]) -> Html:
    return text(what(error), _CHARACTERS)


def _traceback(error: Mapping[str, Any]) -> Html:
    frames = [frame for frame in error.get("frames") or [] if frame.get("kind") != "worker"]
    own = [frame for frame in frames if frame.get("source")][-_FRAMES:]
    if not own:
        return _raw(str(error.get("traceback", "")))
    hidden = len(frames) - len(own)
    whole = el("pre", _pre(), Html(escape(str(error.get("traceback", "")).rstrip())))
    label = f"Whole traceback, {humanize.plural(hidden, 'more frame')}" if hidden else "Whole traceback"
    return join([*map(_frame, own), _folded(label, whole)])


def _pre() -> str:
    return f"margin:0;padding:4px 12px;border:0;background:none;{MONO};color:{TEXT};white-space:pre-wrap"


def _raw(traceback: str) -> Html:
    return el("pre", f"{_pre()};background:{GROUND}", Html(escape(traceback.rstrip()))) if traceback else Html("")


def _frame(frame: Mapping[str, Any]) -> Html:
    function = str(frame.get("function") or "")
    scope = [] if function in ("", "<module>") else [Html(" in "), span(MONO, text(function, 80))]
    head = [text(frame.get("label", ""), 80), *scope, text(f", line {frame.get('line')}", 20)]
    # The lines of the magics above the code are not known here.
    source = dropwhile(lambda numbered: not str(numbered[1]).strip(), frame["source"])
    lines = [_source_line(int(number), str(line), hit=number == frame.get("line")) for number, line in source]
    bar = div(f"{SMALL};padding:2px 12px;color:{DIM};background:{SUNK};border-bottom:1px solid {LINE}", *head)
    return join([bar, el("pre", f"margin:0;padding:4px 0;border:0;background:{GROUND};{MONO};overflow-x:auto", *lines)])


def _source_line(number: int, line: str, *, hit: bool) -> Html:
    """Return a line of code. It reads as text too where styles are taken out."""
    ground, edge = (ERR_TINT, ERR_EDGE) if hit else ("transparent", "transparent")
    mark = span(f"color:{ERR};font-weight:700", Html("➜")) if hit else Html(" ")
    count = span(f"color:{DIM}", Html(f"{number:>4} "))
    style = f"display:block;border-left:3px solid {edge};background:{ground};padding:0 12px 0 9px;color:{TEXT}"
    return span(style, mark, count, text(line, 300), Html("\n"))


def _others(failed: Failures) -> Html:
    """Return one line about the other ranks that failed, which opens what each group of them says."""
    groups = [*([(failed.alike, "the same error")] if failed.alike else [])]
    groups += [(ranks, said.partition(":")[0]) for ranks, said, _ in failed.others]
    short = "; ".join(f"{named(ranks)}: {said}" for ranks, said in groups)
    label = f"{humanize.plural(sum(len(ranks) for ranks, _ in groups), 'other rank')} failed too ({short})"
    return _folded(label, join(div("", text(sentence, _CHARACTERS)) for sentence in failed.rest()))


def _folded(label: str, inside: Html) -> Html:
    summary = el("summary", f"cursor:pointer;list-style:none;color:{DIM};padding:2px 0", Html(f"▸ {escape(label)}"))
    style = f"{SMALL};padding:2px 12px;background:{SUNK};border-top:1px solid {LINE};color:{TEXT}"
    return el("details", style, summary, inside)

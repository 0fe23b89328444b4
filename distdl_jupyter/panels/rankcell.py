"""What the ranks of one cell printed, gave back and raised, as HTML below the cell.

It is drawn anew for each update and is what a saved notebook keeps, so every style is inline. Colours are those of the
theme where the extension's or Jupyter's variables reach, else their light values; each box brings its own ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from distdl_jupyter.core import humanize
from distdl_jupyter.core.printable import printable
from distdl_jupyter.panels import rankfailure
from distdl_jupyter.panels.markup import Html, div, el, span
from distdl_jupyter.panels.rankstyle import BOX, BRAND, DIM, GROUND, PRINT, SMALL, TEXT, WARN_EDGE, WARN_TINT, badge
from distdl_jupyter.ranks.view import Block, Fold, named, spans
from distdl_jupyter.ranks.viewerrors import Failures
from distdl_jupyter.ranks.viewtext import left_out

_GRID = "display:grid;grid-template-columns:max-content minmax(0,1fr);padding:4px 0"
_BAR = f"{SMALL};padding:2px 12px 2px 9px;color:{DIM}"


def cell(fold: Fold, failed: Failures | None = None, *, job: str, status: str = "", newest: int | None = None) -> Html:
    """Return everything about a cell so far; ``status`` is a sentence about ranks that still run, "" at the end.

    ``job`` is the short id of the ranks' job, ``newest`` how many rows are shown at most (None: all that are kept).
    """
    blocks = fold.blocks(newest)
    earlier = left_out(fold, job, newest)
    parts = [div(_BAR, Html(escape(earlier)))] if earlier else []
    if blocks:
        parts.append(div(_GRID, *(part for block in blocks for part in _block(block, fold))))
    if failed is not None:
        parts.append(rankfailure.part(failed))
    if status:
        parts.append(_status(status))
    return div(f"{BOX};background:{GROUND}", *parts, class_="dd dd-rankcell")


def values(groups: Sequence[tuple[Sequence[int], Mapping[str, str]]]) -> Html:
    """Return values by ranks, (ranks, forms by MIME type) each, equal ones already folded."""
    rows = (part for ranks, forms in groups for part in (_ranks(ranks, all_=False), _value(forms)))
    return div(f"{_GRID};{PRINT};background:{GROUND};color:{TEXT}", *rows, class_="dd dd-rankvalues")


def _value(forms: Mapping[str, str]) -> Html:
    """Return a value as its own class wants it shown, else as text."""
    if table := forms.get("text/html"):
        return div("min-width:0;overflow-x:auto", Html(table))
    for kind in ("image/png", "image/jpeg"):
        if picture := forms.get(kind):
            return Html(f'<img alt="" style="max-width:100%" src="data:{kind};base64,{escape(picture)}">')
    plain = forms.get("text/plain", "None")
    return _lines([("out", printable(line)) for line in plain.split("\n")])


def _block(block: Block, fold: Fold) -> Iterable[Html]:
    """Return a line with its ranks before it for neighbouring rows of the same ranks and stream."""
    every = block.ranks == fold.ranks
    yield _ranks(block.ranks, all_=every) if len(fold.ranks) > 1 else span("width:9px")
    yield _lines(block.rows)


def _ranks(ranks: Sequence[int], *, all_: bool) -> Html:
    """Return the ranks in the margin: a single rank has its own colour and swatch, several are grey."""
    one = ranks[0] if len(ranks) == 1 and not all_ else None
    return div("padding:0 12px 0 9px;text-align:right;user-select:none", badge(spans(ranks), one))


def _lines(rows: Sequence[tuple[str, str]]) -> Html:
    """Return (stream, text) as preformatted text; lines of stderr have an edge."""
    pieces: list[str] = []
    before = "out"
    for stream, text in rows:
        if stream != before:
            pieces.append("</span>" if stream == "out" else _ERR_OPEN)
            before = stream
        pieces.append(f"{escape(text, quote=False)}\n")
    if before != "out":
        pieces.append("</span>")
    style = f"margin:0;padding:0 12px 0 0;border:0;background:none;{PRINT};color:{TEXT};white-space:pre-wrap"
    return el("pre", f"{style};overflow-wrap:anywhere", Html("".join(pieces)))


_ERR_OPEN = (
    f'<span style="display:block;border-left:3px solid {WARN_EDGE};margin-left:-9px;padding-left:6px;'
    f'background:{WARN_TINT}" title="stderr">'
)


def _status(sentence: str) -> Html:
    return div(f"{_BAR};padding-bottom:4px", span(f"color:{BRAND}", Html("● ")), Html(escape(sentence)))


def running(ranks: Sequence[int], done: Sequence[int], seconds: float) -> str:
    """Return the sentence of a cell that runs, such as ``Ranks 2-3 still run, 12 s``."""
    left = [rank for rank in ranks if rank not in done] or ranks
    verb = "runs" if len(left) == 1 else "run"
    return f"{named(left).capitalize()}{' still' if done else ''} {verb}, {humanize.duration(seconds)}."

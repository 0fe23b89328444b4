"""Data on its way to a job's nodes, as bars of a static page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.panels.markup import BORDER_2, BRAND, INK, INK_2, Html, div, join, span, text
from distdl_jupyter.views.card import staging_bars, staging_node, staging_share, staging_text

if TYPE_CHECKING:
    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.views.schema import StagingBar


def staging(view: JobView) -> Html:
    """Return a line for each source and node: name, bar, share, bytes; nothing for a job without data."""
    found = staging_bars(view)
    return div("padding:4px 12px 8px;max-width:860px", join(map(_line, found))) if found else Html("")


_NUMBERS = "font-variant-numeric:tabular-nums"


def _line(bar: StagingBar) -> Html:
    part = staging_share(bar)
    fill = span(f"display:block;height:4px;border-radius:2px;background:{BRAND};width:{100 * part:.1f}%")
    name = text(f"{bar.source} · {staging_node(bar)} ", 80)
    percent = Html(f" {humanize.percent(part, 1)} ")
    return div(
        "display:flex;flex-wrap:wrap;gap:2px 12px;align-items:center;padding:2px 0;font-size:12px;line-height:18px",
        span(f"flex:0 0 180px;overflow-wrap:anywhere;color:{INK}", name),
        span(f"flex:0 0 180px;border-radius:2px;background:{BORDER_2}", fill),
        span(f"flex:0 0 40px;text-align:right;{_NUMBERS};color:{INK}", percent),
        span(f"flex:1 1 200px;{_NUMBERS};color:{INK_2}", text(staging_text(bar), 120)),
    )

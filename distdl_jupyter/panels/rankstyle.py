"""Colours and type of what cells on ranks leave behind: the theme's variables, and light values where none reach."""

from __future__ import annotations

from html import escape

from distdl_jupyter.core import theme
from distdl_jupyter.panels.markup import RANK_INK, Html, span

GROUND = "var(--jp-layout-color0,#fff)"
SUNK = "rgba(128,128,128,0.06)"
TEXT = "var(--dd-text,var(--jp-ui-font-color1,#212121))"
DIM = "var(--dd-text-2,var(--jp-ui-font-color2,#616161))"
LINE = "var(--dd-line-2,var(--jp-border-color2,#e0e0e0))"
BRAND = "var(--dd-ink-brand,var(--jp-brand-color1,#1564b2))"
WARN_EDGE = "var(--dd-mark-warn,#e65100)"
WARN_TINT = "var(--dd-tint-warn,rgba(245,124,0,0.09))"
ERR = "var(--dd-ink-err,var(--jp-error-color1,#c22b2b))"
ERR_EDGE = "var(--dd-err,#d32f2f)"
ERR_TINT = "var(--dd-tint-err,rgba(211,47,47,0.07))"
_CODE = "var(--dd-code,Menlo,Consolas,'DejaVu Sans Mono',monospace)"
_UI = "var(--dd-ui,system-ui,-apple-system,'Segoe UI','Helvetica Neue',Helvetica,Arial,sans-serif)"
MONO = f"font:12px/18px {_CODE}"
SMALL = f"font:12px/18px {_UI}"
BASE = f"font:13px/18px {_UI}"
BOX = f"{MONO};color:{TEXT};box-sizing:border-box"


def badge(label: str, rank: int | None) -> Html:
    """Return ranks as the log writes them: a single one in its colour with a swatch, several in grey."""
    if rank is None:
        return span(f"font-weight:600;color:{DIM}", Html(escape(label)))
    colour = rank % len(theme.LIGHT.ranks)
    mark = f"var(--dd-rank-{colour},{theme.LIGHT.ranks[colour]})"
    ink = f"color-mix(in srgb,{mark} 72%,{TEXT})"
    return span(f"font-weight:600;color:{RANK_INK[colour]};color:{ink}", Html(escape(label)))

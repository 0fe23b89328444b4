"""Colours and type of what cells on ranks leave behind: the theme's variables, and light values where none reach."""

from __future__ import annotations

from html import escape

from distdl_jupyter.core import theme
from distdl_jupyter.panels.markup import Html, el

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
#: As the notebook sets the output of any cell.
PRINT = f"font:var(--jp-code-font-size,13px)/var(--jp-code-line-height,1.3077) {_CODE}"
BOX = f"{PRINT};color:{TEXT};box-sizing:border-box"


def badge(label: str, rank: int | None) -> Html:
    """Return ranks as the log writes them: a single one in its colour, several in grey.

    The classes are the log's own: JupyterLab keeps them where it takes mixed colours out, in notebooks without trust.
    """
    if rank is None:
        return el("span", f"font-weight:600;color:{DIM}", Html(escape(label)), class_="dd-rn")
    number = rank % len(theme.LIGHT.ranks)
    ink = f"color-mix(in srgb,var(--dd-rank-{number},{theme.LIGHT.ranks[number]}) 72%,{TEXT})"
    return el("span", f"font-weight:600;color:{ink}", Html(escape(label)), class_=f"dd-rn dd-rank-{number}")

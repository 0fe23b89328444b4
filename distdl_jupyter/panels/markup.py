"""HTML built from pieces that are safe by type: text becomes ``Html`` only by being escaped.

For pages that must stand alone (a saved notebook on a stranger's page): every style is inline, there is no class, no
script and no link, and every box brings its own colours. It knows no job.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from typing import NewType

from distdl_jupyter.core.printable import printable

#: Text that may stand in a page as it is.
Html = NewType("Html", str)

INK, INK_2, BORDER, BORDER_2, SUNK, SURFACE = "#212121", "#616161", "#e0e0e0", "#eeeeee", "#fafafa", "#ffffff"
BRAND, OK, WARN, ERR = "#1564b2", "#1b5e20", "#a13800", "#c22b2b"
BRAND_TINT, OK_TINT, WARN_TINT, ERR_TINT = "#eaf2fb", "#edf5ed", "#fef3e8", "#fcf0f0"
WARN_MARK, ERR_MARK, ERR_EDGE = "#e65100", "#d32f2f", "#f5d1d1"
#: The rank colours darkened, for small letters.
RANK_INK = ("#09356b", "#793007", "#226f51", "#884497")

SANS = "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Helvetica,Arial,sans-serif"
MONO = "Menlo,Consolas,'DejaVu Sans Mono',monospace"
MONO_12 = f"font:12px/18px {MONO}"


def text(value: object, limit: int = 200) -> Html:
    """Return a job's own words, escaped, without control characters and cut at ``limit`` characters."""
    shown = printable(str(value), limit=4 * limit)
    return Html(html.escape(shown if len(shown) <= limit else f"{shown[: limit - 1]}…", quote=True))


def el(name: str, style: str, *inside: Html, **attributes: str) -> Html:
    """Return one element. Attribute values are escaped; an underscore at a name's end is dropped (``class_``)."""
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    styled = f' style="{html.escape(style)}"' if style else ""
    return Html(f"<{name}{styled}{pairs}>{''.join(inside)}</{name}>")


def div(style: str, *inside: Html, **attributes: str) -> Html:
    """Return a block."""
    return el("div", style, *inside, **attributes)


def span(style: str, *inside: Html) -> Html:
    """Return a piece of a line."""
    return el("span", style, *inside)


def mono(value: object, limit: int = 200, colour: str = INK) -> Html:
    """Return code, an id, or a value."""
    return span(f"{MONO_12};color:{colour}", text(value, limit))


def code_in(sentence: str, limit: int = 400) -> Html:
    """Return a sentence in which `names` between backticks are set as code."""
    parts = sentence[:limit].split("`")
    return join(mono(part) if at % 2 else text(part, limit) for at, part in enumerate(parts))


def join(pieces: Iterable[Html]) -> Html:
    """Return pieces of markup one after the other."""
    return Html("".join(pieces))


def picture(svg: str, alternative: str, width: int, height: int) -> Html:
    """Return an SVG as a picture inside the page.

    As an image it survives where inline SVG does not (JupyterLab takes it out of a notebook that is not trusted and
    leaves its letters behind), and where images do not either, the alternative says what it shows.
    """
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    style = "display:block;max-width:100%;height:auto;margin:0;background:#ffffff"
    return Html(
        f'<img src="{source}" alt="{html.escape(alternative)}" width="{width}" height="{height}" style="{style}">'
    )

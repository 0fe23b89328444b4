"""The pictures that ranks have shown: what a panel answers when its page asks for one, and what a notebook keeps."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core import pictures as kept
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.panels.markup import BORDER, INK_2, SURFACE, Html, div, span, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from distdl_jupyter.core.view import JobView, PictureView

#: Bytes of the pictures that a notebook keeps of one job.
_KEPT = 1_000_000

Shown = tuple["PictureView", bytes, str]


def answer(folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    """Read a picture by its ``number``; return it as a data URL in ``value``, or ``error``. Never raises."""
    number = question.get("number")
    found = kept.read(folder, number) if type(number) is int else None
    if found is None:
        return {"error": JobNotFound("This picture is not there any more.").to_json()}
    return {"value": _address(*found)}


def newest(folder: Path, view: JobView) -> list[Shown]:
    """Return the newest pictures, oldest of them first, as many as a notebook keeps."""
    found: list[Shown] = []
    left = _KEPT
    for one in reversed(view.pictures):
        read = kept.read(folder, one.number)
        if read is not None:
            left -= len(read[0])
            if left < 0:
                break
            found.append((one, *read))
    return found[::-1]


def pictures_part(view: JobView, shown: Sequence[Shown]) -> Html:
    """Return pictures beside each other, each with its number, rank and time."""
    if not shown:
        return Html("")
    less = len(view.pictures) - len(shown)
    note = f"The last {humanize.plural(len(shown), 'picture')} of {len(view.pictures)}." if less else ""
    style = f"display:flex;flex-wrap:wrap;gap:12px;border-top:1px solid {BORDER};padding:8px 12px;background:{SURFACE}"
    small = f"font-size:12px;line-height:18px;color:{INK_2}"
    rest = [div(f"flex:1 1 100%;{small}", Html(note))] if note else []
    return div(style, *(_one(*picture, small) for picture in shown), *rest)


def _one(about: PictureView, data: bytes, form: str, small: str) -> Html:
    said = caption(about)
    style = "display:block;max-width:100%;height:auto;margin:0;background:#ffffff"
    size = f'width="{int(about.width)}" height="{int(about.height)}"'
    drawn = Html(f'<img src="{_address(data, form)}" alt="{html.escape(said)}" {size} style="{style}">')
    return div("flex:0 1 auto;max-width:460px;min-width:0", drawn, span(small, text(said)))


def caption(about: PictureView) -> str:
    """Return which picture it is: ``picture 3, rank 0, 14:03:02``."""
    return ", ".join([f"picture {about.number}", humanize.rank_spans(sorted(about.ranks)), humanize.clock(about.t)])


def _address(data: bytes, form: str) -> str:
    return f"data:image/{form};base64,{base64.b64encode(data).decode()}"

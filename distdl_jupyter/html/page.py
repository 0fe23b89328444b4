"""Renders templates with a palette and the texts of ``core.humanize``.

``PAPER`` defines fixed colours for all viewers. ``THEME`` follows the notebook's theme if its variables are defined.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from distdl_jupyter.core import humanize
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import printable

_SANS = "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Helvetica,Arial,sans-serif"
_MONO = "Menlo,Consolas,'DejaVu Sans Mono',monospace"


_PALETTES = {  # colours in PAPER and in THEME: text, lines, backgrounds, marks (borders and icons), tints (backgrounds)
    "ink": ("#212121", "var(--dd-text,var(--jp-ui-font-color1,#212121))"),
    "dim": ("#616161", "var(--dd-text-2,var(--jp-ui-font-color2,#616161))"),
    "line": ("#e0e0e0", "var(--dd-line-2,var(--jp-border-color2,#e0e0e0))"),
    "faint": ("#eeeeee", "var(--dd-line-2,var(--jp-border-color2,#e0e0e0))"),
    "sunk": ("#fafafa", "rgba(128,128,128,0.06)"),
    "ground": ("#ffffff", "var(--jp-layout-color0,#fff)"),
    "brand": ("#1564b2", "var(--dd-ink-brand,var(--jp-brand-color1,#1564b2))"),
    "ok": ("#1b5e20", "var(--dd-ink-ok,#1b5e20)"),
    "warn": ("#a13800", "var(--dd-ink-warn,#a13800)"),
    "warn_mark": ("#e65100", "var(--dd-mark-warn,#e65100)"),
    "warn_tint": ("#fef3e8", "var(--dd-tint-warn,rgba(245,124,0,0.09))"),
    "err": ("#c22b2b", "var(--dd-ink-err,var(--jp-error-color1,#c22b2b))"),
    "err_mark": ("#d32f2f", "var(--dd-err,#d32f2f)"),
    "err_tint": ("#fcf0f0", "var(--dd-tint-err,rgba(211,47,47,0.07))"),
    "sans": (_SANS, f"var(--dd-ui,{_SANS})"),
    "mono": (_MONO, f"var(--dd-code,{_MONO})"),
}
PAPER, THEME = ({name: Markup(pair[n]) for name, pair in _PALETTES.items()} for n in (0, 1))  # noqa: S704 - constants

#: The colours of ranks, dark enough for small text.
RANK_COLOURS = ("#09356b", "#793007", "#226f51", "#884497")
#: Colours of each state on paper: text and background.
_STATE_COLOURS = {
    State.QUEUED: (PAPER["dim"], "#f0f0f0"),
    State.PREPARING: (PAPER["brand"], "#eaf2fb"),
    State.STARTING: (PAPER["brand"], "#eaf2fb"),
    State.RUNNING: (PAPER["brand"], "#eaf2fb"),
    humanize.STALLED: (PAPER["warn"], PAPER["warn_tint"]),
    State.CANCELING: (PAPER["ink"], PAPER["faint"]),
    State.COMPLETED: (PAPER["ok"], "#edf5ed"),
    State.FAILED: (PAPER["err"], PAPER["err_tint"]),
    State.CANCELED: (PAPER["ink"], PAPER["faint"]),
    State.LOST: (PAPER["warn"], PAPER["warn_tint"]),
}
_RING = '<circle cx="8" cy="8" r="5.75"/>'
#: The SVG content of core.humanize.STATE_SHAPES, 16 x 16 pixels, drawn in the colour of the text.
_SHAPES = {
    "dashed-ring": '<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.2 2.5"/>',
    "arc": '<circle cx="8" cy="8" r="5.5" opacity=".35"/><path d="M8 2.5a5.5 5.5 0 0 1 5.5 5.5"/>',
    "disc": '<circle cx="8" cy="8" r="5.5" opacity=".45"/>'
    '<circle cx="8" cy="8" r="3" fill="currentColor" stroke="none"/>',
    "slashed-ring": f'{_RING}<path d="M4 12l8-8"/>',
    "tick": f'{_RING}<path d="M5.4 8.3l1.8 1.8 3.4-3.9"/>',
    "cross": '<circle cx="8" cy="8" r="6.5" fill="currentColor" stroke="none"/>'
    '<path d="M5.7 5.7l4.6 4.6m0-4.6l-4.6 4.6" stroke="#fff"/>',
    "exclamation": f'{_RING}<path d="M8 4.8v4m0 2.3v.1"/>',
    "question": f'{_RING}<path d="M6.3 6.5c.1-2.3 3.5-2.2 3.4 0-.1 1.2-1.7 1.2-1.7 2.5m0 2.1v.1"/>',
}
#: Line breaks of a template that are not significant, because they are between elements, values and blocks.
_LINE_BREAKS = re.compile(r"(?<=[>}])\s*\n\s*(?=[<{])")


def render(name: str, palette: Mapping[str, Markup], **values: Any) -> str:
    """Return the template ``name`` rendered with ``values``."""
    return _load_templates().get_template(name).render(c=palette, **values)


def shorten_text(value: object, limit: int = 200) -> Markup:
    """Return a job's text without control characters, escaped and truncated to ``limit`` characters."""
    text = printable(str(value), limit=4 * limit)
    return escape(text if len(text) <= limit else f"{text[: limit - 1]}…")


def to_data_url(data: bytes, format_: str) -> str:
    """Return a picture as a data URL; ``format_`` is its format, for example "png"."""
    return f"data:image/{format_};base64,{base64.b64encode(data).decode()}"


class _Loader(jinja2.FileSystemLoader):
    """Reads templates without line breaks that are not significant."""

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        source, *rest = super().get_source(environment, template)
        return (_LINE_BREAKS.sub("", source).strip(), *rest)


@functools.cache
def _load_templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=_Loader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cut"] = shorten_text
    for function in (humanize.clock, humanize.plural, humanize.seconds_taken):
        environment.filters[function.__name__] = function
    environment.globals.update(
        shapes={name: Markup(svg) for name, svg in _SHAPES.items()},  # noqa: S704 - constants
        state_colours=_STATE_COLOURS,
        state_shapes=humanize.STATE_SHAPES,
        state_labels=humanize.STATE_LABELS,
    )
    return environment

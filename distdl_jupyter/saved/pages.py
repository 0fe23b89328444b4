"""The templates, and what they know: colours, type, and the words of ``core.humanize``.

``page`` fills a template of ``templates/`` with a palette. ``PAPER`` has colours of its own, for pages that are read
anywhere, light or dark; ``THEME`` follows the notebook's theme where its variables reach, else it is light.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from distdl_jupyter.core import humanize
from distdl_jupyter.core.printable import printable
from distdl_jupyter.core.state import State

_SANS = "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Helvetica,Arial,sans-serif"
_MONO = "Menlo,Consolas,'DejaVu Sans Mono',monospace"


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours and type: words and dim words, lines, grounds; ``mark`` is an edge or a sign, ``tint`` a ground."""

    ink: str
    dim: str
    line: str
    faint: str
    sunk: str
    ground: str
    brand: str
    ok: str
    warn: str
    warn_mark: str
    warn_tint: str
    err: str
    err_mark: str
    err_tint: str
    sans: str
    mono: str


PAPER = Palette(
    ink="#212121", dim="#616161", line="#e0e0e0", faint="#eeeeee", sunk="#fafafa", ground="#ffffff",
    brand="#1564b2", ok="#1b5e20",
    warn="#a13800", warn_mark="#e65100", warn_tint="#fef3e8",
    err="#c22b2b", err_mark="#d32f2f", err_tint="#fcf0f0",
    sans=_SANS, mono=_MONO,
)  # fmt: skip
THEME = Palette(
    ink="var(--dd-text,var(--jp-ui-font-color1,#212121))", dim="var(--dd-text-2,var(--jp-ui-font-color2,#616161))",
    line="var(--dd-line-2,var(--jp-border-color2,#e0e0e0))", faint="var(--dd-line-2,var(--jp-border-color2,#e0e0e0))",
    sunk="rgba(128,128,128,0.06)", ground="var(--jp-layout-color0,#fff)",
    brand="var(--dd-ink-brand,var(--jp-brand-color1,#1564b2))", ok="var(--dd-ink-ok,#1b5e20)",
    warn="var(--dd-ink-warn,#a13800)", warn_mark="var(--dd-mark-warn,#e65100)",
    warn_tint="var(--dd-tint-warn,rgba(245,124,0,0.09))",
    err="var(--dd-ink-err,var(--jp-error-color1,#c22b2b))", err_mark="var(--dd-err,#d32f2f)",
    err_tint="var(--dd-tint-err,rgba(211,47,47,0.07))",
    sans=f"var(--dd-ui,{_SANS})", mono=f"var(--dd-code,{_MONO})",
)  # fmt: skip

#: Colours of each state on paper: words and ground.
_STATES = {
    State.QUEUED: (PAPER.dim, "#f0f0f0"),
    State.PREPARING: (PAPER.brand, "#eaf2fb"),
    State.STARTING: (PAPER.brand, "#eaf2fb"),
    State.RUNNING: (PAPER.brand, "#eaf2fb"),
    humanize.STALLED: (PAPER.warn, PAPER.warn_tint),
    State.CANCELING: (PAPER.ink, PAPER.faint),
    State.COMPLETED: (PAPER.ok, "#edf5ed"),
    State.FAILED: (PAPER.err, PAPER.err_tint),
    State.CANCELED: (PAPER.ink, PAPER.faint),
    State.LOST: (PAPER.warn, PAPER.warn_tint),
}
_RING = '<circle cx="8" cy="8" r="5.75"/>'
#: The shapes of core.humanize.STATE_SHAPES, 16 x 16, drawn in the colour of the text.
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
#: Line ends of a template that stand for nothing: those between elements, values and blocks.
_LINE_ENDS = re.compile(r"(?<=[>}])\s*\n\s*(?=[<{])")


def page(name: str, palette: Palette, **about: Any) -> str:
    """Return the template ``name`` filled with ``about``."""
    return _templates().get_template(name).render(c=_colours(palette), **about)


def cut(value: object, limit: int = 200) -> Markup:
    """Return a job's own words, escaped, without control characters and cut at ``limit`` characters."""
    shown = printable(str(value), limit=4 * limit)
    return escape(shown if len(shown) <= limit else f"{shown[: limit - 1]}…")


@functools.cache
def _colours(palette: Palette) -> dict[str, Markup]:
    return {name: Markup(value) for name, value in dataclasses.asdict(palette).items()}  # noqa: S704 - ours


class _Loader(jinja2.FileSystemLoader):
    """Reads templates without the line ends that are there for who reads them."""

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        source, *more = super().get_source(environment, template)
        return (_LINE_ENDS.sub("", source).strip(), *more)


@functools.cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=_Loader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["cut"] = cut
    for word in (
        humanize.clock, humanize.count, humanize.percent, humanize.plural, humanize.rank_spans, humanize.seconds_taken,
    ):  # fmt: skip
        found.filters[word.__name__] = word
    found.globals.update(
        shapes={name: Markup(drawn) for name, drawn in _SHAPES.items()},  # noqa: S704 - ours
        state_colours=_STATES,
        state_shapes=humanize.SHOWN_SHAPES,
        state_words=humanize.SHOWN_WORDS,
    )
    return found

"""Colours of curves and of static pages, light and dark. Values only; where Lab's own variables reach, they are used.

Text reaches 4.5:1 and curves 3:1 on ``surface``. The rank colours keep apart for protanopia, deuteranopia and
tritanopia; they never mean a state, and state colours never mean a rank. Lab's pages have those of ranks and of a
step's parts as variables of ``labextension/src/ui/ui.css``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Ranks beyond so many are drawn in grey together.
COLOURED_RANKS = 8


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours as CSS text. ``ink`` is text, ``ink_2`` secondary text, ``curve`` the mean.

    ``band`` is min to max around the mean, ``haze`` the same behind the lines of single ranks.
    """

    surface: str
    ink: str
    ink_2: str
    grid: str
    axis: str
    border: str
    curve: str
    band: str
    haze: str
    warn: str
    grey: str
    ranks: tuple[str, ...]
    #: Of the parts of a step; the lines that hatch what waits; what makes a rank slow.
    parts: Mapping[str, str]
    hatch: str
    slow: str
    font: str = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"

    def rank_colour(self, rank: int) -> str:
        """Return the colour of a rank; ranks 4 to 7 repeat those of 0 to 3 and are told apart by dashes."""
        return self.ranks[rank % len(self.ranks)]

    def rank_dash(self, rank: int) -> str:
        """Return "solid" for ranks 0 to 3, "dash" for 4 to 7, in turn."""
        return "dash" if rank // len(self.ranks) % 2 else "solid"


LIGHT = Theme(
    surface="#ffffff",
    ink="rgba(0,0,0,0.87)",
    ink_2="rgba(0,0,0,0.6)",
    grid="#ececec",
    axis="#c4c4c4",
    border="#bdbdbd",
    curve="#1564b2",
    band="rgba(25,118,210,0.22)",
    haze="rgba(117,117,117,0.16)",
    warn="#e65100",
    grey="rgba(117,117,117,0.45)",
    ranks=("#0d4a94", "#a8430a", "#2f9a70", "#bd5fd2"),
    parts={
        "data": "#4fa1a5",
        "compute": "#43338c",
        "communication": "#96527a",
        "rest": "#8f8f8f",
        "waiting": "#d9d4c7",
    },
    hatch="#8c8778",
    slow="#e65100",
)

DARK = Theme(
    surface="#212121",
    ink="rgba(255,255,255,0.87)",
    ink_2="rgba(255,255,255,0.64)",
    grid="#303030",
    axis="#5a5a5a",
    border="#616161",
    curve="#64b5f6",
    band="rgba(33,150,243,0.22)",
    haze="rgba(170,170,170,0.16)",
    warn="#ff9800",
    grey="rgba(170,170,170,0.4)",
    ranks=("#8cbbff", "#ee7f38", "#6af0b0", "#cc78b4"),
    parts={
        "data": "#a9e6ee",
        "compute": "#7d60c2",
        "communication": "#d3a3ad",
        "rest": "#8a8a8a",
        "waiting": "#4d4a42",
    },
    hatch="#a39e90",
    slow="#ff9800",
)

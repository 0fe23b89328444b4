"""Colours of figures and of saved pages, for light pages. JupyterLab's variables are used where defined.

Text has a contrast of 4.5:1 and curves of 3:1 on ``SURFACE``. The rank colours stay distinct for protanopia,
deuteranopia and tritanopia; they never mean a state, and state colours never mean a rank. JupyterLab's pages have those
of ranks and of a step's parts as variables of ``labextension/src/ui/ui.css``, and those of dark pages in
``labextension/src/job/plotly.ts``.
"""

from __future__ import annotations

#: More ranks than this are drawn in grey.
COLOURED_RANKS = 8
SURFACE = "#ffffff"
#: Text, and secondary text.
INK, INK_2 = "rgba(0,0,0,0.87)", "rgba(0,0,0,0.6)"
GRID, AXIS, BORDER = "#ececec", "#c4c4c4", "#bdbdbd"
#: The mean, the band from the lowest to the highest value around it, and that band behind the lines of single ranks.
CURVE, BAND, HAZE = "#1564b2", "rgba(25,118,210,0.22)", "rgba(117,117,117,0.16)"
WARN = SLOW = "#e65100"
GREY = "rgba(117,117,117,0.45)"
RANKS = ("#0d4a94", "#a8430a", "#2f9a70", "#bd5fd2")
#: The parts of a step, and the lines that hatch waiting.
PARTS = {
    "data": "#4fa1a5",
    "compute": "#43338c",
    "communication": "#96527a",
    "rest": "#8f8f8f",
    "waiting": "#d9d4c7",
}
HATCH = "#8c8778"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"


def rank_line(rank: int) -> dict[str, str]:
    """Return the colour and dash of a rank's line; ranks 4 to 7 repeat the colours of 0 to 3 with dashes."""
    turn, colour = divmod(rank, len(RANKS))
    return {"color": RANKS[colour], "dash": "dash" if turn % 2 else "solid"}

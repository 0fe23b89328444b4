"""What a notebook keeps of a sweep: one static page, true without any server.

The page holds what ``views.sweep`` says and nothing else. JupyterLab draws the same, and more, in ``job/sweep.ts``.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import duration, number, plural
from distdl_jupyter.core.scale import value_axis
from distdl_jupyter.core.state import State
from distdl_jupyter.saved.curve import end_label
from distdl_jupyter.saved.pages import PAPER, page
from distdl_jupyter.views.sweep import progress, word

if TYPE_CHECKING:
    from distdl_jupyter.views.schema import SweepPanel, TrialRow

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 60, 12, 28
_DONE, _GREY, _GRID, _AXIS = "#6f93bb", "#8f8f8f", "#ececec", "#c4c4c4"
#: Rows of the table.
_ROWS = 12


def html(panel: SweepPanel) -> str:
    """Return the page of a sweep as far as it has come."""
    best = next((one for one in panel.trials if one.number == panel.best), None)
    running = sum(one.state != "pruned" and not State(one.state).ended for one in panel.trials)
    pruned = sum(one.state == "pruned" for one in panel.trials)
    summary = [f"{panel.done} of {plural(panel.size, 'trial')}", f"{running} running" if running else "",
               f"{pruned} pruned" if pruned else "", duration(panel.elapsed)]  # fmt: skip
    return page(
        "sweep.html",
        PAPER,
        panel=panel,
        state=State(panel.state),
        summary=" · ".join(filter(None, summary)),
        best=best and {"value": number(best.value or 0.0), "number": best.number,
                       "values": [*zip(panel.parameters, map(_word, best.values), strict=True)]},
        columns=("Trial", panel.metric, *panel.parameters, "Progress", "State", ""),
        rows=[_row(one, panel) for one in panel.trials[:_ROWS]],
        more=max(0, len(panel.trials) - _ROWS),
        figure=_picture(panel),
    )  # fmt: skip


def _word(value: float | str) -> str:
    return value if isinstance(value, str) else word(int(value) if value == int(value) and abs(value) < 1e15 else value)


def _row(one: TrialRow, panel: SweepPanel) -> dict[str, Any]:
    value = "" if one.value is None else number(one.value)
    return {"best": one.number == panel.best, "dim": one.state in ("pruned", "failed", "canceled"),
            "cells": [str(one.number), value, *map(_word, one.values), progress(one)],
            "state": one.state.capitalize(), "detail": one.detail}  # fmt: skip


def _picture(panel: SweepPanel) -> dict[str, Any] | None:
    if not any(len(one.steps) > 1 for one in panel.trials):
        return None
    data = base64.b64encode(svg(panel).encode()).decode()
    says = f"{panel.metric} of {plural(sum(bool(one.steps) for one in panel.trials), 'trial')} over their steps"
    return {"address": f"data:image/svg+xml;base64,{data}", "width": WIDTH, "height": HEIGHT, "says": says}


def svg(panel: SweepPanel) -> str:
    """Return the curves of the trials, the best last, ``WIDTH`` x ``HEIGHT`` pixels."""
    drawn = [one for one in reversed(panel.trials) if one.steps]
    xs = [step for one in drawn for step in one.steps]
    ys = [value for one in drawn for value in one.means]
    left, right = min(xs), max(xs)
    width, axis = max(right - left, 1e-12), value_axis(ys, 5)

    def down(value: float) -> float:
        return _TOP + (1 - axis.place(value)) * (HEIGHT - _TOP - _BOTTOM)

    def place(step: float, value: float) -> str:
        x = _LEFT + (step - left) / width * (WIDTH - _LEFT - _RIGHT)
        return f"{x:.1f} {down(value):.1f}"

    parts = []
    for value, label in axis.ticks:
        y = down(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>'
                     f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')  # fmt: skip
    base = HEIGHT - _BOTTOM
    parts.append(f'<path d="M{_LEFT} {base}H{WIDTH - _RIGHT}" stroke="{_AXIS}"/>'
                 f'<text x="{_LEFT}" y="{base + 16}">{left:g}</text>'
                 f'<text x="{WIDTH - _RIGHT}" y="{base + 16}" text-anchor="end">step {right:g}</text>')  # fmt: skip
    for one in drawn:
        is_best = one.number == panel.best
        line = "L".join(map(place, one.steps, one.means))
        style = (f'stroke="{PAPER.brand}" stroke-width="2.5"' if is_best else f'stroke="{_GREY}" stroke-width="1.25"'
                 if one.state == "pruned" else f'stroke="{_DONE}" stroke-width="1.25"')  # fmt: skip
        parts.append(f'<path d="M{line}" fill="none" {style}/>')
        x, y = map(float, place(one.steps[-1], one.means[-1]).split())
        if one.state == "pruned":
            cross = f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"
            parts.append(f'<path d="{cross}" stroke="{PAPER.ink}" stroke-width="1.5"/>')
        if is_best:
            parts.append(end_label(x + 6, y + 4, number(one.means[-1]), PAPER.brand))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="11" '
        f'fill="{PAPER.dim}">{"".join(parts)}</svg>'
    )

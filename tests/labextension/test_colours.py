"""Lab's pages and what Python draws have the same colours: for ranks, for the parts of a step, and in dark figures."""

import re
from pathlib import Path

import pytest

from distdl_jupyter.core import theme
from distdl_jupyter.core.figure import Earlier, figure
from distdl_jupyter.core.series import SeriesBook

SOURCES = Path(__file__).parents[2] / "labextension" / "src"


def variables(block):
    return dict(re.findall(r"--dd-([a-z0-9-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_ranks_and_parts_have_the_colours_of_the_pages(colours):
    light, dark = re.findall(r"\{([^{}]*--dd-rank-0:[^{}]*)\}", (SOURCES / "ui" / "ui.css").read_text())
    shown = variables(light) | (variables(dark) if colours is theme.DARK else {})
    assert tuple(shown[f"rank-{number}"] for number in range(4)) == colours.ranks
    assert {part: shown[part] for part in colours.parts} == colours.parts
    assert shown["hatch"] == colours.hatch


def book(ranks):
    book = SeriesBook()
    for step in range(20):
        for rank in range(ranks):
            loss = float("nan") if step == 9 else 1 / (step + rank + 1)
            book.apply({"type": "metric", "t": 1.8e9 + step, "rank": rank, "step": step, "values": {"loss": loss}})
    return book


def darkened(part, dark, name=""):
    """Do as ``plotly.ts`` does."""
    if isinstance(part, str):
        return dark.get(part, part) if name.endswith("color") else part
    if isinstance(part, list):
        return [darkened(one, dark) for one in part] if part and isinstance(part[0], dict) else part
    return {key: darkened(one, dark, key) for key, one in part.items()} if isinstance(part, dict) else part


@pytest.mark.parametrize(("mode", "ranks"), [("band", 4), ("ranks", 8), ("ranks", 9)])
def test_a_page_turns_a_light_figure_into_the_dark_one(mode, ranks):
    (table,) = re.findall(r"const DARK: .* = \{([^{}]*)\}", (SOURCES / "job" / "plotly.ts").read_text())
    dark = dict(re.findall(r"'(.+)': '(.+)'", table))
    light, wanted = (
        figure(book(ranks), "loss", mode=mode, dark=one, earlier=Earlier(book(1), "before", 5.0))
        for one in (False, True)
    )
    assert darkened(light, dark) == wanted != light

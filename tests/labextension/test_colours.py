"""Lab's pages and what Python draws have the same colours for ranks and for the parts of a step."""

import re
from pathlib import Path

import pytest

from distdl_jupyter.core import theme

CSS = Path(__file__).parents[2] / "labextension" / "src" / "ui" / "ui.css"


def variables(block):
    return dict(re.findall(r"--dd-([a-z0-9-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_ranks_and_parts_have_the_colours_of_the_pages(colours):
    light, dark = re.findall(r"\{([^{}]*--dd-rank-0:[^{}]*)\}", CSS.read_text())
    shown = variables(light) | (variables(dark) if colours is theme.DARK else {})
    assert tuple(shown[f"rank-{number}"] for number in range(4)) == colours.ranks
    assert {part: shown[part] for part in colours.parts} == colours.parts
    assert shown["hatch"] == colours.hatch

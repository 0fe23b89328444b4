"""The committed notebooks: with their outputs or without, and with no path of the machine that wrote them."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
#: Those whose outputs are part of what a reader is shown.
SHOWN = {"quickstart", "ranks", "when_training_hangs"}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_has_outputs_where_it_should_and_no_path_of_its_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/home/|/root/|/work/|/tmp/", text)
    assert any(cell.get("outputs") for cell in json.loads(text)["cells"]) == (path.stem in SHOWN)
